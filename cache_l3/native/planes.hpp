// Numbers taken apart into planes of one byte each, and put together again: byte for byte the same.
//
// Each number is turned left by one bit first, so that its sign lies below its mantissa and the last plane of a bf16 or fp32
// is its exponent, whole: that one compresses, the others are nearly noise.
#pragma once

#include <cstddef>

#include "kernels.hpp"

namespace stratakv::l3 {

// `planes`: `width` planes of `count` bytes, one after another, the least significant first. `width` is 1, 2, 4 or 8.
void split_planes(const std::byte* numbers, std::size_t count, std::size_t width, std::byte* planes,
                  Kernel kernel = Kernel::Best) noexcept;

// The reverse; `planes[i]` is where plane i lies.
void join_planes(const std::byte* const* planes, std::size_t count, std::size_t width, std::byte* numbers,
                 Kernel kernel = Kernel::Best) noexcept;

}  // namespace stratakv::l3
