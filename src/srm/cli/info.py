"""`srm info NAME`: one model in full."""
