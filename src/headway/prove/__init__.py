"""The proof kit: does Headway do on this machine what it promises?"""
