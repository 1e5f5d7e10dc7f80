// Reads the replies of one connection, without a socket: says where the next bytes go, and takes what arrived there.
//
// Of RESP2 it knows +, -, :, $ and nothing that nests. Bytes of a record's payload go straight to where they stay; all
// else passes a small buffer. Nothing that comes makes it write outside of that buffer, the place, or memory that it made
// for a record no longer than the place.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "request.hpp"

namespace stratakv::l3 {

struct ReplyLimits {
  HeaderShape shape;
  std::size_t line_bytes_max = 0;
  std::size_t reply_bytes_max = 0;  // one reply to a question
};

enum class Reading {
  More,      // all is read that has come
  Answered,  // the request has its reply: status() and text()
  Broken,    // so that nothing after it can be trusted: status() and text()
};

class Receiver {
 public:
  explicit Receiver(const ReplyLimits& limits);

  // Where to receive next: one or two parts.
  std::size_t places(iovec* out, bool expects_record);
  // So many bytes were received there.
  void took(std::size_t bytes);
  // Reads on for the oldest request that was sent and has no reply; nullptr: there is none.
  Reading read(Request* oldest);

  // Bytes of a record that are still to come straight to their place: nothing can be read before they have.
  std::size_t due() const { return state_ == State::Payload && sink_ != nullptr ? left_ : 0; }
  // Whether a record's header has been read, and its end not yet.
  bool is_in_record() const { return state_ == State::Payload || (state_ == State::Trailer && sunk_ > 0); }
  Status status() const { return status_; }
  std::string& text() { return text_; }

 private:
  enum class State { Line, Header, Payload, Text, Trailer };
  enum class Step { Again, More, Answered, Broken };

  Step step(Request& request);
  Step read_line(Request& request);
  Step read_error(Request& request, std::string_view line);
  Step read_simple(Request& request, std::string_view line);
  Step read_integer(Request& request, std::string_view line);
  Step read_length(Request& request, std::string_view line);
  Step read_header(Request& request);
  Step begin_payload(Request& request, std::size_t header_bytes, bool possible);
  Step read_payload(Request& request);
  Step read_text();
  Step read_trailer(Request& request);
  Step answer(Request& request, Answer one);
  Step end(Status status, std::string text = {});
  Step broken(Status status, std::string text);
  std::size_t waiting() const { return end_ - begin_; }

  ReplyLimits limits_;
  std::size_t capacity_;
  std::unique_ptr<std::byte[]> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  State state_ = State::Line;
  std::size_t left_ = 0;         // bytes of the value that are still to come
  std::byte* sink_ = nullptr;    // of a payload; nullptr: thrown away
  std::size_t sunk_ = 0;
  RunningXxh3 hash_;
  Answer one_;
  Status status_ = Status::Done;
  std::string text_;
};

}  // namespace stratakv::l3
