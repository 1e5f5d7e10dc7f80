"""Buffers that callers bring: checked, and seen as one memoryview of bytes a page."""

from __future__ import annotations

from collections.abc import Sequence

from cache_l2._native import ScatteredPage, gather_pages
from inference_worker.dlpack import DLPackTensor, tensor_bytes
from kv_types.errors import BufferMismatchError, InvalidArgumentError

Buffers = Sequence[object] | object
"""One buffer a page, or one buffer for all of them, end to end: anything with the buffer protocol, or CPU tensors."""


PageSource = memoryview | ScatteredPage
"""Where the bytes of one page to store are."""


def page_sources(buffers: Buffers, *, pages: int, page_bytes: int) -> list[PageSource]:
    """View what is to be stored, as `page_views` does; pages of a list may lie in several runs of memory."""
    if not isinstance(buffers, list) or not any(isinstance(one, ScatteredPage) for one in buffers):
        return [*page_views(buffers, pages=pages, page_bytes=page_bytes, writable=False, what="source")]
    if len(buffers) != pages:
        raise BufferMismatchError(f"{pages} pages need {pages} sources; got {len(buffers)}")
    return [_page_source(one, index, page_bytes) for index, one in enumerate(buffers)]


def page_views(
    buffers: Buffers, *, pages: int, page_bytes: int, writable: bool, what: str
) -> list[memoryview]:
    """View `buffers` as `pages` contiguous runs of `page_bytes` bytes.

    A destination may be longer than needed; a source must fit exactly, since a longer one is likely another page
    size. `what` is "destination" or "source". Raises BufferMismatchError naming the first buffer that does not fit, the bytes it
    needs and the bytes it has.
    """
    if isinstance(buffers, list | tuple):
        return _one_a_page(buffers, pages=pages, page_bytes=page_bytes, writable=writable, what=what)
    whole = byte_view(buffers, writable=writable, what=f"the {what}")
    needed = pages * page_bytes
    if whole.nbytes < needed or (whole.nbytes != needed and not writable):
        raise BufferMismatchError(
            f"the {what} holds {whole.nbytes} bytes; {pages} pages of {page_bytes} bytes need {needed}"
        )
    return [whole[page * page_bytes : (page + 1) * page_bytes] for page in range(pages)]


def byte_view(buffer: object, *, writable: bool, what: str) -> memoryview:
    """View one buffer or CPU tensor as bytes; raises BufferMismatchError when it has none to give."""
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]  # anything may come in; what is no buffer raises
    except TypeError:
        if not isinstance(buffer, DLPackTensor):
            raise BufferMismatchError(
                f"{what} is of type {type(buffer).__name__}, which is neither a buffer nor a CPU tensor"
            ) from None
        view = tensor_bytes(buffer, what)
    except (BufferError, ValueError) as error:
        raise BufferMismatchError(f"{what} does not hand out its memory: {error}") from error
    if not view.c_contiguous:
        raise BufferMismatchError(f"{what} is not contiguous; copy it first")
    if writable and view.readonly:
        raise BufferMismatchError(f"{what} is read-only; a destination must be writable")
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def _one_a_page(
    buffers: Sequence[object], *, pages: int, page_bytes: int, writable: bool, what: str
) -> list[memoryview]:
    if len(buffers) != pages:
        raise BufferMismatchError(f"{pages} pages need {pages} {what}s; got {len(buffers)}")
    views = []
    for index, buffer in enumerate(buffers):
        view = byte_view(buffer, writable=writable, what=f"{what} {index}")
        if view.nbytes < page_bytes or (view.nbytes != page_bytes and not writable):
            raise BufferMismatchError(
                f"{what} {index} holds {view.nbytes} bytes; a page of this namespace has {page_bytes}"
            )
        views.append(view[:page_bytes])
    return views


def gathered(source: PageSource) -> memoryview:
    """The bytes of one page end to end: as they are, or copied together. Raises InvalidArgumentError for a revoked page."""
    if isinstance(source, memoryview):
        return source
    page = memoryview(bytearray(source.nbytes))
    try:
        gather_pages([source], [page], begin=0, end=source.nbytes)
    except ValueError as error:  # revoked meanwhile
        raise InvalidArgumentError(f"source: {error}") from error
    return page


def _page_source(source: object, index: int, page_bytes: int) -> PageSource:
    if not isinstance(source, ScatteredPage):
        return _one_a_page([source], pages=1, page_bytes=page_bytes, writable=False, what="source")[0]
    if source.nbytes != page_bytes:
        raise BufferMismatchError(
            f"source {index} holds {source.nbytes} bytes; a page of this namespace has {page_bytes}"
        )
    return source
