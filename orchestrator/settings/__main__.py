"""`python -m orchestrator.settings` prints the configuration page."""

import sys

from orchestrator.settings.document import configuration_page

sys.stdout.write(configuration_page())
