"""`python -m cloud_hub` is `cloud_hub`."""

from cloud_hub.cli import main

main()
