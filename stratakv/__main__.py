"""`python -m stratakv` is the `stratakv` command."""

from stratakv.cli import main

if __name__ == "__main__":
    main()
