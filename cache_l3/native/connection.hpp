// One connection: its window of requests, oldest first, what of them has been sent, and what comes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>

#include "descriptor.hpp"
#include "receiver.hpp"
#include "request.hpp"

namespace stratakv::l3 {

// What may be under way on one connection: so many requests, and none more while so many bytes are still to come or to go.
struct Window {
  std::size_t requests = 4;
  std::size_t bytes = SIZE_MAX;
};

enum class Turn {
  Rest,      // nothing to do until the socket says so
  Again,     // there is more to do, after others had a turn
  Answered,  // the oldest request is done: answer_status() and answer_text(); then take another turn
  Broken,    // failure() and failure_text()
};

class Connection {
 public:
  Connection(std::int64_t number, std::uint32_t shard, Descriptor socket, const ReplyLimits& limits, const Window& window);

  std::int64_t number() const { return number_; }
  std::uint32_t shard() const { return shard_; }
  int descriptor() const { return socket_.get(); }
  bool has_room() const { return window_.size() < limit_.requests && weight() < limit_.bytes; }
  // Bytes that are still to go out or to come in.
  std::size_t weight() const;
  std::list<Request*>& window() { return window_; }

  // Sent when its turn comes.
  void add(Request& request);
  // Forgets the oldest request, that has its reply, or one that was not sent, or any when the connection ends.
  void remove(Request& request);
  // What epoll told.
  void told(std::uint32_t events);
  // Sends and receives a bounded number of bytes.
  Turn turn(std::uint64_t& bytes_in, std::uint64_t& bytes_out);
  // Ends it for whoever else has the descriptor too (a forked child, say).
  void shut() noexcept;

  // What turn() found, valid until the next one.
  Status failure() const { return failure_; }
  std::string& failure_text() { return failure_text_; }
  Status answer_status() const { return receiver_.status(); }
  std::string& answer_text() { return receiver_.text(); }

  bool is_ready = false;  // the engine has noted that it has something to do

 private:
  Turn send(std::uint64_t& bytes_out);
  Turn receive(std::uint64_t& bytes_in);
  Turn read();
  Turn fail_early();
  std::size_t gather(iovec* out, std::size_t parts_max);
  void sent(std::size_t bytes);
  bool seal_ahead();
  void set_low_water();
  Turn fail(Status status, std::string text);

  const std::int64_t number_;
  const std::uint32_t shard_;
  Descriptor socket_;
  const HeaderShape shape_;
  const Window limit_;
  Receiver receiver_;
  std::list<Request*> window_;
  std::list<Request*>::iterator sending_;  // the first that is not wholly sent
  std::size_t sent_bytes_ = 0;             // of that one
  std::size_t out_left_ = 0;     // of all
  std::size_t in_left_ = 0;      // of places, that of the oldest wholly
  bool writable_ = true, readable_ = true, hung_up_ = false;
  bool is_tcp_ = false;
  std::size_t low_water_ = 1;  // of a TCP socket: bytes that make it readable
  bool unread_ = false;  // bytes were received that no request has read yet
  Status failure_ = Status::Lost;
  std::string failure_text_;
};

}  // namespace stratakv::l3
