// The module: the eviction policy and the replay of traces for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <ctime>
#include <string>
#include <tuple>
#include <vector>

#include "policy_state.hpp"
#include "prefix_policy.hpp"
#include "replay.hpp"

namespace nb = nanobind;

namespace stratakv {
namespace {

PolicyMode mode_of(const std::string& name) {
  if (name == "learned") return PolicyMode::kLearned;
  if (name == "lru") return PolicyMode::kLru;
  throw nb::value_error("policy must be learned or lru");
}

std::uint32_t or_none(std::optional<std::uint32_t> page) { return page.value_or(kNoPage); }

// The policy with holds that count, which Python's owners want.
class HeldPolicy {
 public:
  HeldPolicy(std::uint32_t pages, const std::string& mode, std::uint32_t attention_pages, std::uint64_t seed)
      : policy_(PolicyOptions{pages, mode_of(mode), attention_pages, seed, 0}), holds_(pages, 0) {}

  PrefixPolicy& policy() { return policy_; }
  std::uint32_t resident() const { return resident_; }

  void insert(const std::vector<std::uint32_t>& pages, std::optional<std::uint32_t> parent,
              const std::vector<std::uint32_t>& digests, std::uint64_t now_ns, std::uint64_t expires_ns, std::uint16_t queue) {
    if (pages.size() != digests.size()) throw nb::value_error("as many digests as pages, please");
    std::uint32_t below = or_none(parent);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      policy_.insert(pages[i], below, digests[i], queue, now_ns, expires_ns);
      ++resident_;
      below = pages[i];
    }
  }

  void hold(std::uint32_t page) {
    policy_.withdraw(page);
    ++holds_[page];
  }

  void release(std::uint32_t page) {
    if (!policy_.resident(page) || holds_[page] == 0) throw std::invalid_argument("page is not held");
    if (--holds_[page] == 0) policy_.offer(page);
  }

  bool is_held(std::uint32_t page) const { return page < holds_.size() && holds_[page] != 0; }

  void remove(std::uint32_t page, bool evicted) {
    if (policy_.resident(page) && !policy_.is_leaf(page)) throw std::invalid_argument("page carries resident pages");
    policy_.remove(page, evicted);
    holds_[page] = 0;
    --resident_;
  }

  // `is_elsewhere` is asked about victims that are believed to be elsewhere; one that is not is chosen again, as what it costs.
  std::vector<std::uint32_t> evict(std::uint32_t count, std::uint64_t now_ns, std::uint16_t queue,
                                   const std::optional<nb::callable>& last_access,
                                   const std::optional<nb::callable>& is_elsewhere) {
    std::vector<std::uint32_t> victims;
    std::uint32_t mistaken = 0;
    policy_.begin_round(now_ns);
    while (victims.size() < count) {
      const std::optional<ColdPage> victim =
          !last_access ? policy_.coldest(queue)
                       : policy_.coldest(queue, [&](std::uint32_t page) { return nb::cast<std::uint64_t>((*last_access)(page)); });
      if (!victim) break;
      if (is_elsewhere && mistaken < kMistakenPerCall && policy_.is_learned() && policy_.is_elsewhere(victim->page) &&
          !nb::cast<bool>((*is_elsewhere)(victim->page))) {
        policy_.set_elsewhere(victim->page, false);
        ++mistaken;
        continue;
      }
      remove(victim->page, true);
      victims.push_back(victim->page);
    }
    return victims;
  }

 private:
  static constexpr std::uint32_t kMistakenPerCall = 256;  // a ms or so; then victims are taken for what they are believed to be

  PrefixPolicy policy_;
  std::vector<std::uint32_t> holds_;
  std::uint32_t resident_ = 0;
};

using Times = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t> replay(
    const Times& times_ns, const Numbers& offsets, const Numbers& blocks, std::uint32_t capacity_blocks,
    const std::string& mode, std::uint32_t piece_blocks, std::uint64_t seed, bool is_processor_time,
    std::uint32_t attention_blocks, double elsewhere_cost) {
  const std::uint64_t requests = times_ns.shape(0);
  if (offsets.shape(0) != requests + 1) throw nb::value_error("offsets must be one more than times");
  for (std::uint64_t i = 0; i < requests; ++i) {
    if (times_ns.data()[i] < 0 || (i > 0 && times_ns.data()[i] < times_ns.data()[i - 1])) {
      throw nb::value_error("times must not be negative nor go back");
    }
    if (offsets.data()[i] > offsets.data()[i + 1]) throw nb::value_error("offsets must not go back");
  }
  if (offsets.data()[0] != 0 || offsets.data()[requests] != blocks.shape(0)) {
    throw nb::value_error("offsets must begin with 0 and end with the number of blocks");
  }
  const ReplayOptions options{mode_of(mode), piece_blocks, seed, attention_blocks, elsewhere_cost};
  nb::gil_scoped_release released;
  std::uint64_t longest = 0;
  for (std::uint64_t i = 0; i < requests; ++i) longest = std::max(longest, offsets.data()[i + 1] - offsets.data()[i]);
  if (capacity_blocks == 0 || longest + capacity_blocks > PrefixPolicy::kPagesMost) {
    throw std::invalid_argument("the cache must hold a block, and with the longest request not more than 2^24");
  }
  const clockid_t clock = is_processor_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  const auto now = [clock] {
    timespec at{};
    clock_gettime(clock, &at);
    return static_cast<std::uint64_t>(at.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(at.tv_nsec);
  };
  Replay run(capacity_blocks, static_cast<std::uint32_t>(longest), options, now);
  for (std::uint64_t i = 0; i < requests; ++i) {
    const std::uint64_t first = offsets.data()[i];
    run.request(static_cast<std::uint64_t>(times_ns.data()[i]), blocks.data() + first, offsets.data()[i + 1] - first);
  }
  const ReplayResult& result = run.result();
  return {result.requested, result.hit, result.evictions, result.decision_ns, result.longest_ns, result.choice_ns};
}

void bind_held_policy(nb::module_& m) {
  nb::class_<HeldPolicy>(m, "PrefixPolicy", nb::is_final())
      .def(nb::init<std::uint32_t, const std::string&, std::uint32_t, std::uint64_t>(), nb::kw_only(), nb::arg("pages"),
           nb::arg("policy") = "learned", nb::arg("attention_pages") = 0, nb::arg("seed") = 1)
      .def("looked", [](HeldPolicy& self, std::optional<std::uint32_t> deepest, std::uint32_t resident_pages,
                        std::uint32_t missing_pages, std::uint64_t now_ns, std::uint32_t first_missing) {
             self.policy().looked(or_none(deepest), resident_pages, missing_pages, now_ns, first_missing);
           }, nb::arg("deepest").none(), nb::arg("resident_pages"), nb::arg("missing_pages"), nb::arg("now_ns"),
           nb::arg("first_missing") = 0)
      .def("insert", &HeldPolicy::insert, nb::arg("pages"), nb::arg("parent").none(), nb::arg("digests"), nb::arg("now_ns"),
           nb::arg("expires_ns") = PrefixPolicy::kNever, nb::arg("queue") = 0)
      .def("touched", [](HeldPolicy& self, std::uint32_t page, std::uint64_t now_ns) { self.policy().touched(page, now_ns); },
           nb::arg("page"), nb::arg("now_ns"))
      .def("hold", &HeldPolicy::hold, nb::arg("page"))
      .def("release", &HeldPolicy::release, nb::arg("page"))
      .def("remove", &HeldPolicy::remove, nb::arg("page"), nb::arg("evicted") = false)
      .def("evict", &HeldPolicy::evict, nb::arg("count"), nb::arg("now_ns"), nb::arg("queue") = 0,
           nb::arg("last_access") = nb::none(), nb::arg("is_elsewhere") = nb::none())
      .def("set_cost", [](HeldPolicy& self, std::uint32_t page, double cost) { self.policy().set_cost(page, cost); },
           nb::arg("page"), nb::arg("cost"))
      .def("set_elsewhere", [](HeldPolicy& self, std::uint32_t page, bool is_elsewhere) {
             self.policy().set_elsewhere(page, is_elsewhere);
           }, nb::arg("page"), nb::arg("is_elsewhere"))
      .def("set_losing_costs", [](HeldPolicy& self, double elsewhere, std::uint32_t attention_pages) {
             self.policy().set_elsewhere_cost(elsewhere);
             self.policy().set_attention_pages(attention_pages);
           }, nb::kw_only(), nb::arg("elsewhere"), nb::arg("attention_pages"))
      .def("resident", [](HeldPolicy& self, std::uint32_t page) { return self.policy().resident(page); }, nb::arg("page"))
      .def("is_leaf", [](HeldPolicy& self, std::uint32_t page) { return self.policy().is_leaf(page); }, nb::arg("page"))
      .def("is_held", &HeldPolicy::is_held, nb::arg("page"))
      .def("export_state", [](HeldPolicy& self) {
             const std::string bytes = PolicyState::exported(self.policy());
             return nb::bytes(bytes.data(), bytes.size());
           })
      .def("import_state", [](HeldPolicy& self, const nb::bytes& bytes, std::uint64_t now_ns) {
             PolicyState::restore(self.policy(), std::string_view(bytes.c_str(), bytes.size()), now_ns);
           }, nb::arg("state"), nb::arg("now_ns"))
      .def("bytes", [](HeldPolicy& self) { return self.policy().bytes(); })
      .def("is_learned", [](HeldPolicy& self) { return self.policy().is_learned(); })
      .def("counts", [](HeldPolicy& self) {
             const PolicyCounts& counts = self.policy().counts();
             nb::dict told;
             told["requests"] = counts.requests;
             told["estimates"] = counts.estimates;
             told["evicted"] = counts.evicted;
             told["returned"] = counts.returned;
             told["made_up"] = counts.made_up;
             told["elsewhere"] = counts.elsewhere;
             return told;
           })
      .def("__len__", &HeldPolicy::resident);
}

}  // namespace
}  // namespace stratakv

NB_MODULE(_native, m) {
  using namespace stratakv;
  bind_held_policy(m);
  m.def("replay", replay, nb::arg("times_ns"), nb::arg("offsets"), nb::arg("blocks"), nb::kw_only(), nb::arg("capacity_blocks"),
        nb::arg("policy") = "learned", nb::arg("piece_blocks") = 0, nb::arg("seed") = 1, nb::arg("processor_time") = false,
        nb::arg("attention_blocks") = 0, nb::arg("elsewhere_cost") = 1.0);
}
