import argparse

import pytest

from april.errors import UsageError
from specrollout.engine import settings_for
from specrollout.settings import VARIABLE, Settings, add_arguments, from_args, of_environment


def parsed(*words: str) -> Settings | None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return from_args(parser.parse_args(list(words)))


def test_off_unless_asked_for():
    assert parsed() is None
    assert of_environment({}) is None
    assert of_environment({VARIABLE: ""}) is None


def test_flags_and_environment_hold_the_same():
    made = parsed("--specrollout", "on", "--specrollout-gamma", "7", "--specrollout-drafter", "auto")
    assert made == Settings(gamma=7, drafter="auto")
    assert of_environment({VARIABLE: made.to_json()}) == made


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"gamma": 12}, "--specrollout-gamma is 12"),
        ({"gamma": 0}, "--specrollout-gamma is 0"),
        ({"gamma": "best"}, "--specrollout-gamma is best"),
        ({"gamma": True}, "--specrollout-gamma is True"),
        ({"longest": 17}, "--specrollout-longest is 17"),
        ({"eps": 1.5}, "--specrollout-eps is 1.5"),
        ({"drafter": "w2"}, "--specrollout-drafter is w2"),
        ({"toggle": "paper"}, "--specrollout-calibration"),
        ({"group": 100}, "--specrollout-group is 100"),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(wrong: dict[str, object], said: str):
    with pytest.raises(UsageError, match=said) as error:
        Settings(**wrong)  # type: ignore[arg-type]
    assert "it must be" in str(error.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"drafters": "w4"}'])
def test_a_wrong_variable_names_the_variable(text: str):
    with pytest.raises(UsageError, match=VARIABLE):
        of_environment({VARIABLE: text})


def test_where_a_pass_has_a_fixed_width_every_draft_is_the_longest():
    asked = Settings(gamma="optimal", longest=7)
    assert settings_for("cpu", asked) == asked
    assert settings_for("cuda", asked) == Settings(gamma=7, longest=7)
