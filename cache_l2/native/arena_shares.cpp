// Tenants' shares of the arena: whom a page may be taken from, and who is asked first.
#include <stdexcept>
#include <string>

#include "arena.hpp"

namespace stratakv {

void Arena::set_tenant_shares(const std::vector<std::uint64_t>& share_bytes) {
  if (free_entries_.size() != pages_.size()) throw std::invalid_argument("shares are set before anything is stored");
  if (share_bytes.size() > kTenantSharesMax) {
    throw std::invalid_argument("at most " + std::to_string(kTenantSharesMax) + " tenants have a share");
  }
  shares_.set(share_bytes);
}

void Arena::set_tenant(std::uint64_t namespace_slot, std::uint32_t tenant) {
  if (tenant >= shares_.tenants()) throw std::invalid_argument("tenant " + std::to_string(tenant) + " has no share");
  if (namespaces_[namespace_slot].entries != 0) {
    throw std::invalid_argument("namespace " + std::to_string(namespace_slot) + " has pages, which are of another tenant");
  }
  shares_.assign(namespace_slot, tenant);
}

// The coldest leaf of a class that may go for whoever is given room now. Whoever is owed what it asks for takes of others.
std::optional<ColdPage> Arena::coldest_victim(std::uint32_t size_class, bool is_owed) {
  std::optional<ColdPage> coldest;
  const std::uint64_t slot_bytes = segments_.slot_bytes(size_class);
  for (std::uint32_t tenant = 0; tenant < shares_.tenants(); ++tenant) {
    if (is_owed && tenant == taker_) continue;
    if (!shares_.may_lose(tenant, taker_, slot_bytes)) continue;
    const std::optional<ColdPage> victim = coldest_of(queue_of(size_class, tenant));
    if (victim && (!coldest || victim->value < coldest->value)) coldest = victim;
  }
  return coldest;
}

// Whether the pages of one namespace may all go for somebody else's.
bool Arena::may_lose_namespace(std::uint64_t namespace_slot) const {
  const NamespacePages& space = namespaces_[namespace_slot];
  if (space.first_root == kNoEntry) return true;
  const std::uint64_t bytes = space.resident.pages * segments_.slot_bytes(pages_[space.first_root].size_class);
  return shares_.may_lose(shares_.of_namespace(namespace_slot), kNobody, bytes);
}

// Whether a page must not be taken for the room that `taker` needs.
bool Arena::is_kept(std::uint32_t entry, std::uint32_t taker) const {
  const Page& page = pages_[entry];
  return pins_.holds(entry) || !shares_.may_lose(page.tenant, taker, segments_.slot_bytes(page.size_class));
}

void Arena::check_shares() const {
  std::vector<std::uint64_t> used(shares_.tenants());
  for (const Page& page : pages_) {
    if (page.state == PageState::kFree || page.state == PageState::kHidden) continue;
    used[page.tenant] += segments_.slot_bytes(page.size_class);
  }
  for (std::uint32_t tenant = 0; tenant < shares_.tenants(); ++tenant) {
    if (used[tenant] != shares_.of(tenant).used_bytes) {
      throw std::runtime_error("what tenant " + std::to_string(tenant) + " uses is miscounted");
    }
  }
  for (std::uint32_t entry = 0; entry < pages_.size(); ++entry) {
    const bool has_namespace = pages_[entry].state != PageState::kFree && pages_[entry].state != PageState::kGranted;
    if (!has_namespace || pages_[entry].tenant == shares_.of_namespace(namespace_slot_of(entry))) continue;
    throw std::runtime_error("entry " + std::to_string(entry) + " counts for another tenant than its namespace's");
  }
}

}  // namespace stratakv
