// Whose pages may make room for whom: what each tenant with a share of the arena holds, against what it is owed.
//
// Tenant 0 stands for everybody without a share. Bytes are those of whole slots: reserved, granted, quarantined or visible;
// what is hidden already counts for nobody.
#pragma once

#include <cstdint>
#include <vector>

#include "limits.hpp"

namespace stratakv {

constexpr std::uint32_t kNobody = 0xFFFFFFFFu;  // no tenant asks for room
constexpr std::uint32_t kTenantsMax = kTenantSharesMax + 1;

struct TenantStatistics {
  std::uint64_t share_bytes = 0;  // 0 for tenant 0, which has none
  std::uint64_t used_bytes = 0;
  std::uint64_t evictions_own = 0;       // pages evicted for itself, or for nobody
  std::uint64_t evictions_caused = 0;    // pages of others evicted for it
  std::uint64_t evictions_suffered = 0;  // pages of its own evicted for others
};

class Shares {
 public:
  Shares() : tenants_(1), of_namespace_(kNamespacesMax, 0) {}

  void set(const std::vector<std::uint64_t>& share_bytes) {
    tenants_.assign(1, {});
    for (const std::uint64_t bytes : share_bytes) {
      tenants_.push_back({});
      tenants_.back().share_bytes = bytes;
    }
  }
  std::uint32_t tenants() const { return static_cast<std::uint32_t>(tenants_.size()); }

  void assign(std::uint64_t namespace_slot, std::uint32_t tenant) { of_namespace_[namespace_slot] = static_cast<std::uint8_t>(tenant); }
  std::uint8_t of_namespace(std::uint64_t namespace_slot) const { return of_namespace_[namespace_slot]; }

  // Whether `owner` may lose slots of so many bytes for `taker`.
  bool may_lose(std::uint32_t owner, std::uint32_t taker, std::uint64_t bytes) const {
    const TenantStatistics& tenant = tenants_[owner];
    return owner == 0 || owner == taker || (tenant.used_bytes >= bytes && tenant.used_bytes - bytes >= tenant.share_bytes);
  }
  // Whether so many bytes more are within a tenant's own share: then others give way before its own pages do.
  bool is_owed(std::uint32_t tenant, std::uint64_t bytes) const {
    if (tenant == 0 || tenant == kNobody) return false;
    return tenants_[tenant].used_bytes + bytes <= tenants_[tenant].share_bytes;
  }

  void add(std::uint32_t tenant, std::uint64_t bytes) { tenants_[tenant].used_bytes += bytes; }
  void take(std::uint32_t tenant, std::uint64_t bytes) { tenants_[tenant].used_bytes -= bytes; }
  void evicted(std::uint32_t owner, std::uint32_t taker) {
    if (taker == kNobody || taker == owner) {
      ++tenants_[owner].evictions_own;
    } else {
      ++tenants_[owner].evictions_suffered;
      ++tenants_[taker].evictions_caused;
    }
  }
  const TenantStatistics& of(std::uint32_t tenant) const { return tenants_[tenant]; }

 private:
  std::vector<TenantStatistics> tenants_;
  std::vector<std::uint8_t> of_namespace_;  // by number
};
static_assert(kTenantsMax <= 256);

// Room is made for a tenant while this lives.
class AsTaker {
 public:
  AsTaker(std::uint32_t& taker, std::uint32_t tenant) : taker_(taker) { taker_ = tenant; }
  ~AsTaker() { taker_ = kNobody; }
  AsTaker(const AsTaker&) = delete;
  AsTaker& operator=(const AsTaker&) = delete;

 private:
  std::uint32_t& taker_;
};

}  // namespace stratakv
