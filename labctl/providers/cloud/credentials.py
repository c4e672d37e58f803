"""Whether this machine can speak to a cloud at all: packages, credentials, region, project. Shows no secret."""

from __future__ import annotations

import importlib
import importlib.util
import os
from contextlib import suppress
from typing import Any

from labctl.errors import ConfigError
from labctl.providers.cloud.catalogue import Cloud

_PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "GCP_PROJECT", "CLOUDSDK_CORE_PROJECT")
# What the modules of google.cloud themselves take, before application default credentials.
_GCP_VARIABLES = ("GCP_ACCESS_TOKEN", "GCP_SERVICE_ACCOUNT_FILE", "GCP_SERVICE_ACCOUNT_CONTENTS")


def require(cloud: Cloud) -> None:
    """Check that packages and credentials of a cloud are there; whether it takes them, it is asked later.

    Raises:
        ConfigError: Something is missing.
    """
    missing = [name for name in cloud.modules if not _has(name)]
    if missing:
        raise ConfigError(
            f"not installed beside labctl: {', '.join(missing)}",
            expected=f"what the modules of {cloud.name} need",
            do=f"pip install 'labctl[{cloud.extra}]'",
        )
    why = _aws_lacks() if cloud.name == "aws" else _gcp_lacks()
    if why is not None:
        raise ConfigError(
            f"no credentials of {cloud.name}: {why}",
            expected="credentials where its own tools look: environment, profile or signed-in user",
            do=cloud.sign_in,
        )


def region(cloud: Cloud) -> str | None:
    """Return the region that environment or profile names."""
    for name in cloud.region_variables:
        if os.environ.get(name):
            return os.environ[name]
    if cloud.name == "aws" and _has("botocore"):
        with suppress(Exception):  # a damaged profile is `require`'s to tell
            found = _botocore_session().get_config_variable("region")
            return None if found is None else str(found)
    return None


def project(cloud: Cloud) -> str:
    """Return the project that the environment names, "" for none."""
    if cloud.name != "gcp":
        return ""
    return next((os.environ[each] for each in _PROJECT_VARIABLES if os.environ.get(each)), "")


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _botocore_session() -> Any:
    return importlib.import_module("botocore.session").get_session()


def _aws_lacks() -> str | None:
    """Return why there are no credentials, None if there are."""
    base: type[Exception] = importlib.import_module("botocore.exceptions").BotoCoreError
    try:
        found = _botocore_session().get_credentials()
    except base as error:
        return str(error)
    return "none in environment, profiles or instance role" if found is None else None


def _gcp_lacks() -> str | None:
    """Return why there are no credentials, None if there are."""
    if any(os.environ.get(name) for name in _GCP_VARIABLES):
        return None
    auth = importlib.import_module("google.auth")
    errors: Any = importlib.import_module("google.auth.exceptions")
    base: type[Exception] = errors.GoogleAuthError
    try:
        auth.default(scopes=["https://www.googleapis.com/auth/compute"])
    except base as error:
        return str(error).split(". ")[0]
    return None
