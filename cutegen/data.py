from pathlib import Path
def data_dir(kind: str) -> Path:
    return Path(__file__).resolve().parent.parent / kind
