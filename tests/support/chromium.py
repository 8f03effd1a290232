"""A headless chromium for tests of pages: where it is, how it starts, and what it says on its console."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-prefers-reduced-motion",
)
PATIENCE = 600  # seconds for one command
MISSING = "no chromium with its driver here (Debian: apt-get install chromium chromium-driver)"


def programs() -> tuple[str, str] | None:
    """The browser and its driver, or None when one of them is not installed."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


def _started(options: Any, program: str, retries: int = 2) -> Any:
    """Start the browser; on a busy machine it may need more than the minute that its driver allows."""
    from selenium import webdriver
    from selenium.common.exceptions import SessionNotCreatedException

    try:
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=program))
    except SessionNotCreatedException:
        if not retries:
            raise
        return _started(options, program, retries - 1)
    driver.command_executor.client_config.timeout = PATIENCE
    return driver


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A started browser with a fresh profile."""
    from selenium import webdriver

    browser_and_driver = programs()
    assert browser_and_driver is not None, MISSING
    options = webdriver.ChromeOptions()
    options.binary_location = browser_and_driver[0]
    # Chromium's sandbox refuses to start as root, as which containers run.
    for flag in (*FLAGS, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = _started(options, browser_and_driver[1])
    try:
        yield driver
    finally:
        driver.quit()


def screen(driver: Any, width: int, height: int, *, mobile: bool = False, theme: str = "light") -> None:
    """Set the size of the screen and what the system says about dark pages."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def console(driver: Any) -> list[str]:
    """What was written to the console since the last call, errors and warnings included."""
    return [entry["message"] for entry in driver.get_log("browser")]
