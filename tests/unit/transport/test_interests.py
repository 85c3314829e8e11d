"""Filters of many takers: what is found once is forgotten when it may have changed."""

from fleet.transport.interests import Interests


def test_filters_of_a_topic_follow_who_comes_and_goes() -> None:
    interests = Interests[str]()
    interests.add("a/b", "one")
    interests.add("a/+", "two")
    assert list(interests.filters_of("a/b")) == ["a/b", "a/+"]

    interests.add("#", "three")
    assert list(interests.filters_of("a/b")) == ["a/b", "a/+", "#"]
    interests.discard("a/+", "two")
    assert list(interests.filters_of("a/b")) == ["a/b", "#"]

    interests.add("#", "four")
    assert interests.takers("#") == ["three", "four"]
    interests.discard("a/b", "one")
    assert interests.takers("a/b") == []
