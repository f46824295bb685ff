"""The reader of configuration files and, with `orchestrator.home`, of the environment.

`load_settings` turns what a process was given (folder, environment, file, `-c`, flags) into one frozen
`Settings`; everything else in the system gets values from it and never looks for itself.

The precedence, from the strongest: flags, `-c key=value`, environment, the chosen profile, the current
folder's `dendro.toml`, the person's own file, the default. The person's file is the one in the home folder
(`DENDRO_HOME`); one that `--config` names counts instead of both. A folder's file that no person has trusted
loosens nothing. Every key `a.b` can also be given as the variable `DENDRO_A_B`. A key that nobody
knows is a warning, not an error: a file of Codex's, or of a newer version, must load.

- `load`: the whole, made of the tables in `orchestrator.config_keys`, which document each setting; errors of
  what people write
- `sources`: where values are found; the one place that reads `os.environ`
- `folder_trust`: what a folder's file may set, and which files a person trusts
- `layers`: the precedence
- `document`: the page `docs/configuration.md`
"""

from orchestrator.config_keys import FOLDER_SETUP
from orchestrator.settings.folder_trust import FolderConfig, TrustedFile, TrustList, content_hash, whole_key
from orchestrator.settings.layers import SettingsError, read_folder_file
from orchestrator.settings.load import HostSettings, Settings, keys_that_loosen, load_settings, permitted
from orchestrator.settings.sources import SettingsSources, keys_to_trust

__all__ = [
    "FOLDER_SETUP",
    "FolderConfig",
    "HostSettings",
    "Settings",
    "SettingsError",
    "SettingsSources",
    "TrustList",
    "TrustedFile",
    "content_hash",
    "keys_that_loosen",
    "keys_to_trust",
    "load_settings",
    "permitted",
    "read_folder_file",
    "whole_key",
]
