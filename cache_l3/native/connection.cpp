// Sending and receiving on one non-blocking socket that is watched for edges.
#include "connection.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace stratakv::l3 {
namespace {

constexpr std::size_t kPartsMax = 16;
constexpr std::size_t kSendBytesMax = 1024 * 1024;  // of one call, about; so that others get their turn
constexpr int kNearBytesMax = 256 * 1024;           // on their way to a server on this machine: what stays in a near cache
constexpr std::size_t kLowWaterBytesMax = 512 * 1024;
constexpr std::size_t kSealBytesMax = 512 * 1024;   // hashed in one go: some 20 µs

std::string error_text(int number) { return std::strerror(number); }

// An option that makes nothing right or wrong, only fast.
void set_option(int socket, int level, int name, int value) noexcept { ::setsockopt(socket, level, name, &value, sizeof(value)); }

int family_of(int socket) noexcept {
  int family = AF_UNSPEC;
  socklen_t bytes = sizeof(family);
  return ::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &bytes) == 0 ? family : AF_UNSPEC;
}

// Whether the other end of a TCP socket is this machine.
bool is_near(int socket) noexcept {
  sockaddr_storage peer{};
  socklen_t bytes = sizeof(peer);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) return false;
  if (peer.ss_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(peer).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  return peer.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr);
}

}  // namespace

Connection::Connection(
    std::int64_t number, std::uint32_t shard, Descriptor socket, const ReplyLimits& limits, const Window& window)
    : number_(number),
      shard_(shard),
      socket_(std::move(socket)),
      shape_(limits.shape),
      limit_(window),
      receiver_(limits),
      sending_(window_.end()) {
  const int family = family_of(socket_.get());
  is_tcp_ = family == AF_INET || family == AF_INET6;
  if (!is_tcp_) return;
  set_option(socket_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (is_near(socket_.get())) set_option(socket_.get(), SOL_SOCKET, SO_SNDBUF, kNearBytesMax);
}

void Connection::add(Request& request) {
  request.connection = this;
  request.spot = window_.insert(window_.end(), &request);
  if (sending_ == window_.end()) sending_ = request.spot;
  out_left_ += request.bytes_out();
  in_left_ += request.place_bytes;
}

std::size_t Connection::weight() const {
  const std::size_t arrived = receiver_.is_in_record() ? window_.front()->place_bytes - receiver_.due() : 0;
  return out_left_ + in_left_ - arrived;
}

void Connection::remove(Request& request) {
  if (!request.was_sent) out_left_ -= request.bytes_out();
  in_left_ -= request.place_bytes;
  if (sending_ == request.spot) ++sending_;
  window_.erase(request.spot);
  request.connection = nullptr;
}

void Connection::told(std::uint32_t events) {
  if (events & EPOLLOUT) writable_ = true;
  if (events & EPOLLIN) readable_ = true;
  if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) hung_up_ = readable_ = true;
}

void Connection::shut() noexcept { ::shutdown(socket_.get(), SHUT_RDWR); }

Turn Connection::turn(std::uint64_t& bytes_in, std::uint64_t& bytes_out) {
  if (unread_) {
    const Turn turn = read();
    if (turn != Turn::Rest) return turn;
  }
  if (readable_) {
    const Turn turn = receive(bytes_in);
    if (turn == Turn::Answered || turn == Turn::Broken) return turn;
  }
  if (writable_ && sending_ != window_.end() && send(bytes_out) == Turn::Broken) return Turn::Broken;
  const bool sealed_ahead = !writable_ && seal_ahead();
  return readable_ || sealed_ahead || (writable_ && sending_ != window_.end()) ? Turn::Again : Turn::Rest;
}

Turn Connection::send(std::uint64_t& bytes_out) {
  if ((*sending_)->unsealed) {
    (*sending_)->seal_step(shape_, kSealBytesMax);
    return Turn::Again;
  }
  iovec parts[kPartsMax];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = gather(parts, kPartsMax);
  const ssize_t bytes = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (bytes >= 0) {
    bytes_out += static_cast<std::uint64_t>(bytes);
    sent(static_cast<std::size_t>(bytes));
    return Turn::Again;
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK) {
    writable_ = false;
    return Turn::Rest;
  }
  if (errno == EINTR) return Turn::Again;
  // It takes no more; what it said before it hung up may tell why.
  writable_ = false;
  hung_up_ = readable_ = true;
  return Turn::Again;
}

// What can be sent in one call.
std::size_t Connection::gather(iovec* out, std::size_t parts_max) {
  std::size_t count = 0;
  std::size_t bytes = 0;
  std::size_t offset = sent_bytes_;
  for (auto at = sending_; at != window_.end() && count + 4 <= parts_max && bytes < kSendBytesMax; ++at, offset = 0) {
    if ((*at)->unsealed) break;
    const std::size_t parts = (*at)->parts(offset, out + count);
    for (std::size_t i = count; i < count + parts; ++i) bytes += out[i].iov_len;
    count += parts;
  }
  return count;
}

void Connection::sent(std::size_t bytes) {
  sent_bytes_ += bytes;
  out_left_ -= bytes;
  while (sent_bytes_ > 0) {
    (*sending_)->was_sent = true;
    if (sent_bytes_ < (*sending_)->bytes_out()) return;
    sent_bytes_ -= (*sending_)->bytes_out();
    ++sending_;
  }
}

// While the socket takes nothing, the next payload may be hashed as well.
bool Connection::seal_ahead() {
  for (auto at = sending_; at != window_.end(); ++at) {
    if (!(*at)->unsealed) continue;
    (*at)->seal_step(shape_, kSealBytesMax);
    return true;
  }
  return false;
}

Turn Connection::receive(std::uint64_t& bytes_in) {
  iovec parts[2];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = receiver_.places(parts, !window_.empty() && window_.front()->verb == Verb::Get);
  std::size_t room = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) room += parts[i].iov_len;
  const ssize_t bytes = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (bytes < 0) {
    if (errno == EINTR) return Turn::Again;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return fail(Status::Lost, error_text(errno));
    readable_ = false;
    return hung_up_ ? fail(Status::Lost, "the connection hung up") : Turn::Rest;
  }
  if (bytes == 0) return fail(Status::Lost, "the server closed the connection");
  bytes_in += static_cast<std::uint64_t>(bytes);
  // Fewer bytes than there was room for: a stream is empty then, and more of it is a new edge; only its end may be known already.
  if (static_cast<std::size_t>(bytes) < room && !hung_up_) readable_ = false;
  receiver_.took(static_cast<std::size_t>(bytes));
  return read();
}

Turn Connection::read() {
  Request* const oldest = window_.empty() || !window_.front()->was_sent ? nullptr : window_.front();
  unread_ = false;
  switch (receiver_.read(oldest)) {
    case Reading::More: set_low_water(); return Turn::Rest;
    case Reading::Answered:
      if (sending_ == window_.begin()) return fail_early();
      unread_ = true;
      return Turn::Answered;
    case Reading::Broken: return fail(receiver_.status(), std::move(receiver_.text()));
  }
  return Turn::Rest;
}

// A reply that is whole before its request was: a server may refuse what it has not read, and it alone knows what it reads next.
Turn Connection::fail_early() {
  if (receiver_.status() == Status::Refused) return fail(Status::Refused, std::move(receiver_.text()));
  return fail(Status::Malformed, "a reply came before its request was sent");
}

// What is due of a record goes to its place in few large pieces: to be woken for each segment of it costs more than the rest.
void Connection::set_low_water() {
  const std::size_t wanted = std::clamp<std::size_t>(receiver_.due(), 1, kLowWaterBytesMax);
  if (!is_tcp_ || wanted == low_water_) return;
  low_water_ = wanted;
  set_option(socket_.get(), SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(wanted));
}

Turn Connection::fail(Status status, std::string text) {
  failure_ = status;
  failure_text_ = std::move(text);
  return Turn::Broken;
}

}  // namespace stratakv::l3
