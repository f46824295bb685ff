"""The only reader of the environment and of configuration files.

`load_settings` turns what a process was given (folder, environment, file, `-c`, flags) into one frozen
`Settings`; everything else in the system gets values from it and never looks for itself.

Who is heard, from the strongest: flags, `-c key=value`, environment, the chosen profile, the file,
the default. The file is the one of `--config`, else `dendro.toml` in the current folder, else in the home
folder (`DENDRO_HOME`). Every key `a.b` can also be given as the variable `DENDRO_A_B`. A key that nobody
knows is a warning, not an error: a file of the peer's, or of a newer version, must load.

- `records`: what can be set, with the text of the documentation under each field
- `sources`: where values are found; the one place that reads `os.environ`
- `layers`: who is heard; `values`: types and limits; `load`: the whole
- `document`: the page `docs/configuration.md`
"""

from orchestrator.settings.layers import SettingsError
from orchestrator.settings.load import load_settings
from orchestrator.settings.records import (
    AgentSettings,
    ChainSettings,
    EnvironmentPolicy,
    HostSettings,
    LogSettings,
    ModelPrice,
    ModelSettings,
    ProviderSettings,
    RedisSettings,
    SandboxPolicy,
    SandboxSettings,
    Secret,
    SessionDefaults,
    Settings,
    ToolSettings,
    UpkeepSettings,
    WireSettings,
    WorkerSettings,
)
from orchestrator.settings.sources import SettingsSources

__all__ = [
    "AgentSettings",
    "ChainSettings",
    "EnvironmentPolicy",
    "HostSettings",
    "LogSettings",
    "ModelPrice",
    "ModelSettings",
    "ProviderSettings",
    "RedisSettings",
    "SandboxPolicy",
    "SandboxSettings",
    "Secret",
    "SessionDefaults",
    "Settings",
    "SettingsError",
    "SettingsSources",
    "ToolSettings",
    "UpkeepSettings",
    "WireSettings",
    "WorkerSettings",
    "load_settings",
]
