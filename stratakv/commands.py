"""How verbs read their options: each once, none as the value of another, and some without a value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from typer.core import TyperCommand


class AdminCommand(TyperCommand):
    """A command that takes no part of what was written for another: what it selects or changes may be gone for good."""

    alone: ClassVar[Mapping[str, tuple[str, Collection[str]]]] = {}
    """Options that may stand without a value: what they mean then, and the values that they may have."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check each option where it stands, before the rest is parsed."""
        return super().parse_args(ctx, self._checked(ctx, args))

    def _checked(self, ctx: Any, args: list[str]) -> list[str]:
        options = {
            name: one
            for one in self.get_params(ctx)
            if one.param_type_name == "option"
            for name in (*one.opts, *one.secondary_opts)
        }
        words, seen, position = list(args), set(), 0
        while position < len(words) and words[position] != "--":
            name, has_value, _ = words[position].partition("=")
            position += 1
            option: Any = options.get(name)
            if option is None:
                continue
            is_single = not option.multiple and (option.secondary_opts or not option.is_flag)
            if is_single and option.name in seen:
                ctx.fail(f'give {name} once: options combine by "and", and none has two values')
            seen.add(option.name)
            if has_value or option.is_flag:
                continue
            following = words[position] if position < len(words) else ""
            meaning, values = self.alone.get(name, ("", ()))
            if meaning and following not in values:
                words[position - 1] = f"{name}={meaning}"
                continue
            if following.partition("=")[0] in options:
                ctx.fail(
                    f"{name} has no value: behind it stands {following}; write {name}={following} if you mean that"
                )
            position += 1
        return words
