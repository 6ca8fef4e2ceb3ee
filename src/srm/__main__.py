"""`python -m srm`: the same as `srm`."""

from srm.cli import main

if __name__ == "__main__":
    main()
