"""The extension: the launcher and the engine, in Rust."""

def main(argv: list[str], executable: str, package: str) -> int:
    """Runs the launcher and returns its exit code."""
