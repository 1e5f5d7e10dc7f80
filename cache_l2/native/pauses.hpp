// Windows between two steps of the protocol, where a stress test may hold a thread up. Nothing in the product.
#pragma once

namespace stratakv {

#ifdef STRATAKV_PAUSES
void pause_here() noexcept;  // defined by the test
#else
inline void pause_here() noexcept {}
#endif

}  // namespace stratakv
