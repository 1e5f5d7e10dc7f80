// The replies of one connection as a state machine over bytes.
#include "receiver.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <new>

namespace stratakv::l3 {
namespace {

constexpr std::size_t kFirstReadBytes = 4096;     // of a record: its length, its header, and little of its payload
constexpr std::size_t kDirectReadBytes = 256 * 1024;  // received at once, so that it is hashed while it is in a near cache
constexpr std::size_t kQuotedBytes = 64;
constexpr std::string_view kHangsUp = "-ERR Protocol error";  // a server that says so closes the connection

// At most this much of what a peer said, with nothing in it that a terminal or a log would obey.
std::string quoted(std::string_view bytes) {
  std::string out;
  for (const char c : bytes.substr(0, kQuotedBytes)) out += c >= ' ' && c <= '~' ? c : '?';
  return out;
}

// A whole decimal number without padding, or false.
bool parse(std::string_view digits, std::int64_t& number) {
  const std::string_view bare = digits.substr(!digits.empty() && digits[0] == '-' ? 1 : 0);
  if (bare.empty() || (bare[0] == '0' && digits.size() > 1)) return false;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size();
}

}  // namespace

Receiver::Receiver(const ReplyLimits& limits)
    : limits_(limits),
      capacity_(std::max(limits.shape.bytes_max, limits.line_bytes_max) + 2 * kFirstReadBytes),
      buffer_(new std::byte[capacity_]) {}

std::size_t Receiver::places(iovec* out, bool expects_record) {
  if (begin_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, waiting());
    end_ -= begin_;
    begin_ = 0;
  }
  const std::size_t room = capacity_ - end_;
  if (state_ != State::Payload || sink_ == nullptr) {
    out[0] = {buffer_.get() + end_, expects_record && state_ == State::Line ? std::min(room, kFirstReadBytes) : room};
    return 1;
  }
  out[0] = {sink_ + sunk_, std::min(left_, kDirectReadBytes)};
  if (left_ > kDirectReadBytes) return 1;
  out[1] = {buffer_.get() + end_, std::min(room, kFirstReadBytes)};
  return 2;
}

void Receiver::took(std::size_t bytes) {
  if (state_ == State::Payload && sink_ != nullptr) {
    const std::size_t direct = std::min(bytes, left_);
    sunk_ += direct;
    left_ -= direct;
    bytes -= direct;
    hash_.advance(sunk_);
  }
  end_ += bytes;
}

Reading Receiver::read(Request* oldest) {
  while (true) {
    if (state_ == State::Line && waiting() == 0) return Reading::More;
    if (oldest == nullptr) {
      const std::string_view said(reinterpret_cast<const char*>(buffer_.get() + begin_), waiting());
      broken(Status::Malformed, "the server spoke unasked: " + quoted(said.substr(0, said.find('\r'))));
      return Reading::Broken;
    }
    switch (step(*oldest)) {
      case Step::Again: break;
      case Step::More: return Reading::More;
      case Step::Answered: return Reading::Answered;
      case Step::Broken: return Reading::Broken;
    }
  }
}

Receiver::Step Receiver::step(Request& request) {
  switch (state_) {
    case State::Line: return read_line(request);
    case State::Header: return read_header(request);
    case State::Payload: return read_payload(request);
    case State::Text: return read_text();
    case State::Trailer: return read_trailer(request);
  }
  return Step::Broken;
}

Receiver::Step Receiver::read_line(Request& request) {
  const char* const from = reinterpret_cast<const char*>(buffer_.get() + begin_);
  const auto* const newline = static_cast<const char*>(std::memchr(from, '\n', waiting()));
  const std::size_t bytes = newline == nullptr ? waiting() : static_cast<std::size_t>(newline - from);
  if (bytes > limits_.line_bytes_max) return broken(Status::Malformed, "a line without an end: " + quoted({from, bytes}));
  if (newline == nullptr) return Step::More;
  const std::string_view whole(from, bytes);
  begin_ += bytes + 1;
  if (whole.size() < 2 || whole.back() != '\r' || whole.find('\r') != whole.size() - 1) {
    return broken(Status::Malformed, "no line of RESP: " + quoted(whole));
  }
  const std::string_view line = whole.substr(0, whole.size() - 1);
  if (request.asking && (line[0] == '+' || line[0] == '-')) {
    request.asking = false;
    return Step::Again;
  }
  if (request.asking) return broken(Status::Malformed, "no reply to ASKING: " + quoted(line));
  switch (line[0]) {
    case '-': return read_error(request, line);
    case '+': return read_simple(request, line);
    case ':': return read_integer(request, line);
    case '$': return read_length(request, line);
    default: return broken(Status::Malformed, "no reply that was asked for: " + quoted(line));
  }
}

Receiver::Step Receiver::read_error(Request& request, std::string_view line) {
  std::string text(line.substr(1));
  if (request.verb == Verb::Ask) return answer(request, {Answer::Kind::Error, std::move(text), 0});
  const bool hangs_up = line.substr(0, kHangsUp.size()) == kHangsUp;
  return hangs_up ? broken(Status::Refused, std::move(text)) : end(Status::Refused, std::move(text));
}

Receiver::Step Receiver::read_simple(Request& request, std::string_view line) {
  if (request.verb == Verb::Ask) return answer(request, {Answer::Kind::Text, std::string(line.substr(1)), 0});
  if (request.verb == Verb::Set && line == "+OK") return end(Status::Done);
  return broken(Status::Malformed, "no reply of this command: " + quoted(line));
}

Receiver::Step Receiver::read_integer(Request& request, std::string_view line) {
  std::int64_t number = 0;
  if (request.verb != Verb::Ask || !parse(line.substr(1), number)) {
    return broken(Status::Malformed, "no reply of this command: " + quoted(line));
  }
  return answer(request, {Answer::Kind::Integer, {}, number});
}

Receiver::Step Receiver::read_length(Request& request, std::string_view line) {
  std::int64_t length = 0;
  if (request.verb == Verb::Set || !parse(line.substr(1), length) || length < -1) {
    return broken(Status::Malformed, "no length of this command's reply: " + quoted(line));
  }
  if (length == -1) return request.verb == Verb::Get ? end(Status::Absent) : answer(request, {Answer::Kind::Nil, {}, 0});
  left_ = static_cast<std::size_t>(length);
  const bool is_record = request.verb == Verb::Get;
  if (left_ > (is_record ? limits_.shape.bytes_max + 2 * request.place_bytes : limits_.reply_bytes_max)) {
    return broken(Status::TooLarge, "a reply of " + std::to_string(length) + " bytes is far more than was asked for");
  }
  one_ = {Answer::Kind::Text, {}, 0};
  state_ = is_record ? State::Header : State::Text;
  return Step::Again;
}

Receiver::Step Receiver::read_header(Request& request) {
  const HeaderShape& shape = limits_.shape;
  const std::size_t here = std::min(waiting(), left_);
  const std::size_t size_end = shape.size_at + sizeof(std::uint32_t);
  if (here < std::min(size_end, left_)) return Step::More;
  std::uint32_t said = 0;
  if (left_ >= size_end) std::memcpy(&said, buffer_.get() + begin_ + shape.size_at, sizeof(said));
  const bool possible = said >= shape.bytes_min && said <= shape.bytes_max && said <= left_;
  const std::size_t header_bytes = possible ? said : std::min(left_, shape.bytes_max);
  if (here < header_bytes) return Step::More;
  return begin_payload(request, header_bytes, possible);
}

Receiver::Step Receiver::begin_payload(Request& request, std::size_t header_bytes, bool possible) {
  request.record_header.assign(reinterpret_cast<const char*>(buffer_.get() + begin_), header_bytes);
  begin_ += header_bytes;
  left_ -= header_bytes;
  request.stored_bytes = left_;
  request.in_place = possible && left_ == request.place_bytes;
  sink_ = request.in_place ? request.place : nullptr;
  if (possible && left_ < request.place_bytes) {
    request.stored.reset(new (std::nothrow) std::byte[left_]);
    if (request.stored == nullptr) return broken(Status::Lost, "no memory for a record of " + std::to_string(left_) + " bytes");
    sink_ = request.stored.get();
  }
  sunk_ = 0;
  if (sink_ != nullptr) hash_ = RunningXxh3(sink_, left_);
  state_ = State::Payload;
  return Step::Again;
}

Receiver::Step Receiver::read_payload(Request& request) {
  const std::size_t bytes = std::min(waiting(), left_);
  if (sink_ != nullptr && bytes > 0) {
    std::memcpy(sink_ + sunk_, buffer_.get() + begin_, bytes);
    sunk_ += bytes;
    hash_.advance(sunk_);
  }
  begin_ += bytes;
  left_ -= bytes;
  if (left_ > 0) return Step::More;
  if (sink_ != nullptr) request.checksum = hash_.finish();
  state_ = State::Trailer;
  return Step::Again;
}

Receiver::Step Receiver::read_text() {
  const std::size_t bytes = std::min(waiting(), left_);
  one_.text.append(reinterpret_cast<const char*>(buffer_.get() + begin_), bytes);
  begin_ += bytes;
  left_ -= bytes;
  if (left_ > 0) return Step::More;
  state_ = State::Trailer;
  return Step::Again;
}

Receiver::Step Receiver::read_trailer(Request& request) {
  if (waiting() < 2) return Step::More;
  const bool ends = buffer_[begin_] == std::byte{'\r'} && buffer_[begin_ + 1] == std::byte{'\n'};
  begin_ += 2;
  if (!ends) return broken(Status::Malformed, "a reply is longer than it said");
  return request.verb == Verb::Get ? end(Status::Done) : answer(request, std::move(one_));
}

Receiver::Step Receiver::answer(Request& request, Answer one) {
  request.answers.push_back(std::move(one));
  if (request.answers.size() == request.replies) return end(Status::Done);
  state_ = State::Line;
  return Step::Again;
}

Receiver::Step Receiver::end(Status status, std::string text) {
  state_ = State::Line;
  status_ = status;
  text_ = std::move(text);
  return Step::Answered;
}

Receiver::Step Receiver::broken(Status status, std::string text) {
  status_ = status;
  text_ = std::move(text);
  return Step::Broken;
}

}  // namespace stratakv::l3
