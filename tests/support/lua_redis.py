"""Redis scripts outside of Redis: the real text in a real Lua 5.1, with whatever answers `redis.call` given from outside.

Replies are converted as Redis does: an integer is a number, a status a table {ok}, nil is false, an error is raised by
`call` and returned as a table {err} by `pcall`; of a script's result numbers are truncated and a table ends at its first nil.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from lupa import lua51

Reply = Any
"""int, bytes, None, Status, or a list of replies."""
Call = Callable[..., Reply]

_SANDBOX = b"""
local python_call, python_pcall, sha1hex = ...
local environment = {}
for _, name in ipairs({'assert', 'error', 'ipairs', 'math', 'next', 'pairs', 'pcall', 'select', 'string', 'table',
                       'tonumber', 'tostring', 'type', 'unpack', 'xpcall'}) do
  environment[name] = _G[name]
end
environment.redis = { call = python_call, pcall = python_pcall, sha1hex = sha1hex,
  error_reply = function(text) return { err = text } end, status_reply = function(text) return { ok = text } end }
setmetatable(environment, { __index = function(_, name) error('no global ' .. name .. ' here', 2) end })
return function(text)
  local chunk, problem = loadstring(text, '@script')
  if not chunk then error(problem, 0) end
  setfenv(chunk, environment)
  return function(keys, arguments)
    rawset(environment, 'KEYS', keys)
    rawset(environment, 'ARGV', arguments)
    return chunk()
  end
end
"""


class Status(bytes):
    """A status reply, such as OK."""


class ErrorReply(Exception):
    """An error reply; its first word is the code."""


class LuaScripts:
    """Compiles scripts once and runs them, one at a time."""

    def __init__(self) -> None:
        self._lua = lua51.LuaRuntime(
            encoding=None, unpack_returned_tuples=False, register_eval=False, register_builtins=False
        )
        self._table = self._lua.table_from
        self._error: ErrorReply | None = None
        self._command: Call = _nobody
        sandbox = self._lua.execute(b"return function(...) " + _SANDBOX + b" end")
        self._compile = sandbox(self._call, self._pcall, _sha1hex)
        self._compiled: dict[bytes, Any] = {}
        self._table_type = type(self._lua.table())

    def run(self, text: bytes, keys: Sequence[bytes], arguments: Sequence[bytes], command: Call) -> Reply:
        """Run a script; `command(name, *arguments)` answers its calls or raises ErrorReply. Raises ErrorReply."""
        script = self._compiled.get(text)
        if script is None:
            script = self._compiled[text] = self._compile(text)
        self._command, self._error = command, None
        try:
            result = script(self._table(keys), self._table(arguments))
        except lua51.LuaError as error:
            raise self._error or ErrorReply(f"ERR Error running script: {error}") from error
        except ErrorReply as error:
            raise ErrorReply(f"{error} script: this one") from error
        finally:
            self._command = _nobody
        return self._reply(result)

    def _call(self, *arguments: Any) -> Any:
        try:
            reply = self._command(*arguments)
        except ErrorReply as error:
            self._error = error
            raise
        if reply.__class__ is bytes or reply.__class__ is int:
            return reply
        return self._value(reply)

    def _pcall(self, *arguments: Any) -> Any:
        try:
            return self._value(self._command(*arguments))
        except ErrorReply as error:
            return self._table({b"err": str(error).encode()})

    def _value(self, reply: Reply) -> Any:
        if reply is None:
            return False
        if isinstance(reply, list):
            value = self._value
            plain = (bytes, int)
            return self._table([one if one.__class__ in plain else value(one) for one in reply])
        if isinstance(reply, Status):
            return self._table({b"ok": bytes(reply)})
        return reply

    def _reply(self, value: Any) -> Reply:
        if isinstance(value, bytes):
            return value
        if isinstance(value, bool):
            return 1 if value else None
        if isinstance(value, int | float):
            return int(value)
        if not isinstance(value, self._table_type):
            return None
        error, status = value[b"err"], value[b"ok"]
        if error is not None:
            raise ErrorReply(error.decode())
        if status is not None:
            return Status(status)
        replies: list[Reply] = []
        for one in value.values():
            replies.append(one if one.__class__ is bytes else self._reply(one))
        return replies


def _sha1hex(data: Any) -> bytes:
    return hashlib.sha1(_bytes(data), usedforsecurity=False).hexdigest().encode()


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else b"%.17g" % value


def _nobody(*_: Any) -> Reply:
    raise ErrorReply("ERR no script runs")
