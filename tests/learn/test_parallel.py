"""Runs side by side are ordinary commands: the words say all of the settings."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import tyro

from gemrl.data.tasks import TASKS
from gemrl.learn.parallel import job
from gemrl.methods import METHODS, default_config
from gemrl.train_command import train_parser


def parsed(words):
    """The settings that `gemrl train` reads out of these words."""
    kind, default = train_parser(words)
    return tyro.cli(kind, default=default, args=words).config


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", TASKS)
def test_the_words_of_a_job_give_its_settings_back(method, task):
    config = default_config(method, task)
    words = job("a title", task, config, Path("out"), "--task", task).arguments
    assert parsed(list(words)) == config


@pytest.mark.parametrize("method", METHODS)
def test_a_setting_of_the_class_holds_against_one_of_the_task(method):
    of_class = type(default_config(method, None))()
    task = "antmaze-umaze-v2"
    words = job("a title", task, of_class, Path("out"), "--task", task).arguments
    assert parsed(list(words)) == of_class


SWITCHES = [
    (method, setting.name)
    for method in METHODS
    for setting in fields(default_config(method, None))
    if isinstance(setting.default, bool)
]


@pytest.mark.parametrize(("method", "name"), SWITCHES)
def test_a_switch_can_be_turned_either_way(method, name):
    config = default_config(method, "antmaze-umaze-v2")
    turned = replace(config, **{name: not getattr(config, name)})
    words = job("a title", "d.hdf5", turned, Path("out"), "--task", "antmaze-umaze-v2").arguments
    assert parsed(list(words)) == turned
