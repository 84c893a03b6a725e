"""The repository's own commands: `setup`, `test`, `demo`, `lock` and `docs`."""
