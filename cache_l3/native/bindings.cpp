// The module: the engine for Python, with the memory that Python lends it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <unordered_map>

#include "clock.hpp"
#include "codec_bindings.hpp"
#include "engine.hpp"
#include "lent.hpp"
#include "xxh3.hpp"

namespace nb = nanobind;

namespace stratakv::l3 {
namespace {

constexpr std::size_t kLongBytes = 64 * 1024;  // hashing more than this is worth letting go of the GIL

void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const std::system_error& e) {
    const nb::object arguments = nb::make_tuple(e.code().value(), e.what());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  }
}

// Bytes of a record that were received apart from their place.
class Stored {
 public:
  Stored(std::unique_ptr<std::byte[]> data, std::size_t bytes) : data_(std::move(data)), bytes_(bytes) {}
  std::byte* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t bytes_;
};

int lend_stored(PyObject* self, Py_buffer* view, int flags) {
  const auto* const stored = nb::inst_ptr<Stored>(nb::handle(self));
  return PyBuffer_FillInfo(view, self, stored->data(), static_cast<Py_ssize_t>(stored->bytes()), 1, flags);
}

PyType_Slot stored_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(lend_stored)}, {0, nullptr}};

std::string taken(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }
nb::bytes given(const std::string& bytes) { return nb::bytes(bytes.data(), bytes.size()); }
// What a peer said, as text whatever it is.
nb::object told(const std::string& text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

nb::object give_answer(const Answer& answer) {
  switch (answer.kind) {
    case Answer::Kind::Text: return given(answer.text);
    case Answer::Kind::Integer: return nb::int_(answer.integer);
    case Answer::Kind::Error: return nb::make_tuple(told(answer.text));
    case Answer::Kind::Nil: break;
  }
  return nb::none();
}

nb::object give_value(Request& request) {
  if (request.verb == Verb::Set) return nb::none();
  if (request.verb == Verb::Ask) {
    nb::list answers;
    for (const Answer& answer : request.answers) answers.append(give_answer(answer));
    return answers;
  }
  nb::object stored = nb::none();
  if (request.stored != nullptr) stored = nb::cast(Stored(std::move(request.stored), request.stored_bytes));
  return nb::make_tuple(given(request.record_header), request.stored_bytes, request.in_place, stored, request.checksum);
}

class PyEngine {
 public:
  explicit PyEngine(const EngineSettings& settings) : process_(::getpid()), core_(std::make_unique<Engine>(settings)) {}

  ~PyEngine() {
    if (core_ == nullptr) return;
    if (process_ == ::getpid()) {
      close();
      return;
    }
    // A forked child has no such thread, and its lent memory may be written by the parent's: forget it all.
    static_cast<void>(core_.release());
    new std::unordered_map<std::int64_t, Lent>(std::move(lent_));
  }

  Engine& core() const {
    if (process_ != ::getpid()) throw std::runtime_error("this engine belongs to the process that this one was forked from");
    if (closed_) throw std::runtime_error("this engine is closed");
    return *core_;
  }

  int descriptor() const { return core().ended_descriptor(); }

  std::uint32_t open_shard() {
    core().open_shard(++shards_);
    return shards_;
  }

  std::int64_t add_connection(std::uint32_t shard, int descriptor) {
    Descriptor owned(descriptor);
    core().add_connection(++connections_, shard, std::move(owned));
    return connections_;
  }

  std::int64_t get(std::uint32_t shard, const nb::bytes& request, nb::handle place, bool asking, std::uint64_t deadline_ns) {
    Lent lent(place, true, "place");
    if (lent.bytes() == 0) throw nb::value_error("a place has one byte at least");
    auto made = make(Verb::Get, shard, deadline_ns, asking, request);
    made->place = lent.data();
    made->place_bytes = lent.bytes();
    return submit(std::move(made), std::move(lent));
  }

  std::int64_t set(std::uint32_t shard, const nb::bytes& before, const nb::bytes& header, nb::handle payload, const nb::bytes& after,
                   bool asking, std::uint64_t deadline_ns) {
    const HeaderShape& shape = core().shape();
    Lent lent(payload, false, "payload");
    if (header.size() < shape.bytes_min || header.size() > shape.bytes_max) {
      throw nb::value_error(("a header has " + std::to_string(shape.bytes_min) + " to " + std::to_string(shape.bytes_max) +
                             " bytes; got " + std::to_string(header.size())).c_str());
    }
    auto made = make(Verb::Set, shard, deadline_ns, asking, before);
    made->header = taken(header);
    made->payload = lent.data();
    made->payload_bytes = lent.bytes();
    made->after = taken(after);
    made->unsealed = true;
    made->sealing = RunningXxh3(made->payload, made->payload_bytes);
    return submit(std::move(made), std::move(lent));
  }

  std::int64_t ask(std::uint32_t shard, const nb::bytes& request, std::size_t replies, std::uint64_t deadline_ns) {
    if (replies == 0) throw nb::value_error("a question has one command at least");
    auto made = make(Verb::Ask, shard, deadline_ns, false, request);
    made->replies = replies;
    return submit(std::move(made), Lent());
  }

  void cancel(std::int64_t request) { core().cancel(request); }

  // Also after close(): what was under way then has ended, and is given here.
  nb::list drain() {
    nb::list out;
    if (process_ != ::getpid()) throw std::runtime_error("this engine belongs to the process that this one was forked from");
    for (Ended& ended : core_->drain()) {
      const bool is_request = ended.request != nullptr;
      nb::object value = ended.status == Status::Done && is_request ? give_value(*ended.request) : told(ended.text);
      out.append(nb::make_tuple(ended.number, static_cast<int>(ended.status), is_request && ended.request->was_sent, value));
      lent_.erase(ended.number);
    }
    return out;
  }

  nb::dict statistics() const {
    const EngineCounts& counts = core().counts();
    const auto ended = [&](Status status) { return counts.ended[static_cast<std::size_t>(status)].load(); };
    nb::dict out;
    out["gets"] = counts.gets.load();
    out["sets"] = counts.sets.load();
    out["asks"] = counts.asks.load();
    out["bytes_in"] = counts.bytes_in.load();
    out["bytes_out"] = counts.bytes_out.load();
    out["late"] = ended(Status::Late);
    out["lost"] = ended(Status::Lost);
    out["refused"] = ended(Status::Refused);
    out["malformed"] = ended(Status::Malformed);
    out["too_large"] = ended(Status::TooLarge);
    out["cancelled"] = ended(Status::Cancelled);
    out["connections_lost"] = ended(Status::ConnectionEnded);
    out["connections"] = counts.connections.load();
    out["queued"] = counts.queued.load();
    out["in_flight"] = counts.in_flight.load();
    return out;
  }

  void close() {
    if (closed_) return;
    core();
    closed_ = true;
    const nb::gil_scoped_release unlocked;
    core_->close();
  }

 private:
  std::unique_ptr<Request> make(Verb verb, std::uint32_t shard, std::uint64_t deadline_ns, bool asking, const nb::bytes& before) {
    auto request = std::make_unique<Request>();
    request->number = ++requests_;
    request->verb = verb;
    request->shard = shard;
    request->deadline_ns = deadline_ns;
    request->asking = asking;
    request->before = taken(before);
    return request;
  }

  std::int64_t submit(std::unique_ptr<Request> request, Lent lent) {
    Engine& engine = core();
    const std::int64_t number = request->number;
    lent_.emplace(number, std::move(lent));
    engine.submit(std::move(request));
    return number;
  }

  const pid_t process_;
  std::unique_ptr<Engine> core_;
  std::unordered_map<std::int64_t, Lent> lent_;  // by request, until its end was drained
  std::uint32_t shards_ = 0;
  std::int64_t connections_ = 0;
  std::int64_t requests_ = 0;
  bool closed_ = false;
};

// A timer of CLOCK_BOOTTIME for an event loop, which knows no such clock.
class Alarm {
 public:
  Alarm() : timer_(::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK)) {
    if (timer_.get() < 0) throw std::system_error(errno, std::generic_category(), "timerfd_create");
  }
  int descriptor() const { return timer_.get(); }
  void set(std::uint64_t at_ns) { set_timer(timer_.get(), at_ns); }

 private:
  Descriptor timer_;
};

void construct(PyEngine* at, std::size_t size_at, std::size_t checksum_at, std::size_t header_bytes_min, std::size_t header_bytes_max,
               std::size_t window, std::size_t window_bytes, std::size_t passed_over_max, std::size_t line_bytes_max, std::size_t reply_bytes_max) {
  const std::size_t last = std::max(size_at + sizeof(std::uint32_t), checksum_at + sizeof(std::uint64_t));
  if (last + sizeof(std::uint32_t) > header_bytes_min || header_bytes_min > header_bytes_max) {
    throw nb::value_error("a header's size and checksum lie before its CRC, in the shortest header too");
  }
  if (window == 0 || window_bytes == 0) throw nb::value_error("a window has one request at least");
  EngineSettings settings;
  settings.limits.shape = {size_at, checksum_at, header_bytes_min, header_bytes_max};
  settings.limits.line_bytes_max = line_bytes_max;
  settings.limits.reply_bytes_max = reply_bytes_max;
  settings.window = {window, window_bytes};
  settings.passed_over_max = passed_over_max;
  new (at) PyEngine(settings);
}

std::uint64_t hash_of(nb::handle data) {
  const Lent lent(data, false, "data");
  if (lent.bytes() <= kLongBytes) return xxh3_64(lent.data(), lent.bytes());
  const nb::gil_scoped_release unlocked;
  return xxh3_64(lent.data(), lent.bytes());
}

std::uint64_t hash_by(std::size_t kernel, const std::vector<std::size_t>& cuts, nb::handle data) {
  if (kernel >= xxh3_kernels().size()) throw nb::value_error("kernel must be the number of one of XXH3_KERNELS");
  const Lent lent(data, false, "data");
  RunningXxh3 running(lent.data(), lent.bytes(), kernel);
  for (const std::size_t cut : cuts) running.advance(cut);
  return running.finish();
}

}  // namespace
}  // namespace stratakv::l3

NB_MODULE(_native, m) {
  using namespace stratakv::l3;
  nb::register_exception_translator(translate);
  nb::set_leak_warnings(false);  // a data path that lives in a global at exit is no leak worth a page of warnings
  m.doc() = "The native data path of L3.";
  nb::list names;
  for (const Xxh3Kernel& kernel : xxh3_kernels()) names.append(kernel.name);
  m.attr("XXH3_KERNELS") = nb::tuple(names);
  m.def("xxh3_64", hash_of, nb::arg("data"));
  m.def("xxh3_64_by", hash_by, nb::arg("kernel"), nb::arg("cuts"), nb::arg("data"));
  bind_codecs(m);
  nb::class_<Stored>(m, "Stored", nb::type_slots(stored_slots)).def("__len__", &Stored::bytes);
  nb::class_<Alarm>(m, "Alarm").def(nb::init<>()).def("fileno", &Alarm::descriptor).def("set", &Alarm::set, nb::arg("at_ns"));
  nb::class_<PyEngine>(m, "Engine")
      .def("__init__", construct, nb::kw_only(), nb::arg("size_at"), nb::arg("checksum_at"), nb::arg("header_bytes_min"),
           nb::arg("header_bytes_max"), nb::arg("window"), nb::arg("window_bytes"), nb::arg("passed_over_max"),
           nb::arg("line_bytes_max"), nb::arg("reply_bytes_max"))
      .def("fileno", &PyEngine::descriptor)
      .def("open_shard", &PyEngine::open_shard)
      .def("close_shard", [](PyEngine& self, std::uint32_t shard) { self.core().close_shard(shard); }, nb::arg("shard"))
      .def("add_connection", &PyEngine::add_connection, nb::arg("shard"), nb::arg("descriptor"))
      .def("get", &PyEngine::get, nb::arg("shard"), nb::arg("request"), nb::arg("place"), nb::kw_only(), nb::arg("asking"),
           nb::arg("deadline_ns"))
      .def("set", &PyEngine::set, nb::arg("shard"), nb::arg("before"), nb::arg("header"), nb::arg("payload"), nb::arg("after"),
           nb::kw_only(), nb::arg("asking"), nb::arg("deadline_ns"))
      .def("ask", &PyEngine::ask, nb::arg("shard"), nb::arg("request"), nb::arg("replies"), nb::kw_only(), nb::arg("deadline_ns"))
      .def("flush", [](PyEngine& self) { self.core().flush(); })
      .def("cancel", &PyEngine::cancel, nb::arg("request"))
      .def("drain", &PyEngine::drain)
      .def("statistics", &PyEngine::statistics)
      .def("close", &PyEngine::close);
}
