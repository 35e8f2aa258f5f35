"""``python -m polysci`` and the command ``polysci``."""

import sys


def main() -> int:
    """Run the command line; returns its exit status. Ctrl-C ends it while it imports, too."""
    try:
        from polysci import cli

        return cli.main()
    except KeyboardInterrupt:
        print("polysci: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
