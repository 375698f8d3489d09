"""Pictures of runs, from their logs alone: one page that opens offline."""
