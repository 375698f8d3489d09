"""`make pictures`: the pictures of README and guides, of real runs made for them."""
