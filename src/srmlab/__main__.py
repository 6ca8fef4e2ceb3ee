"""`python -m srmlab`: the same as `srmlab`."""

from srmlab.cli import main

if __name__ == "__main__":
    main()
