#include "serve/http.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <boost/asio.hpp>

#include "base/error.h"
#include "serve/http_core.h"
#include "serve/http_text.h"

namespace fathom::serve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using Failure = boost::system::error_code;

constexpr auto kSweepTime = std::chrono::milliseconds(100);

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

struct HttpServer::Impl : HttpCore {
  Impl(const HttpOptions& o, HttpHandler h)
      : HttpCore{o, std::move(h)}, acceptor(context), sweep_timer(context), accept_timer(context), signals(context) {
    io = &context;
  }

  void listen();
  void accept();
  void take(tcp::socket socket);
  void sweep();
  void wait_for_signal(std::function<void(int)> call);

  asio::io_context context{1};
  tcp::acceptor acceptor;
  asio::steady_timer sweep_timer, accept_timer;
  asio::signal_set signals;
  int signal_count = 0;
  std::string address;
};

namespace {

/// Opens, binds and listens.
void listen_on(asio::io_context& context, tcp::acceptor& acceptor, const std::string& host, int port) {
  Failure error;
  tcp::resolver resolver(context);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  const std::string place = fmt::format("{} port {}", printable(host), port);
  if (error || found.empty())
    fail("cannot listen on {}: {}; give an address of this machine", place, error ? error.message() : "no address");
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error == asio::error::address_in_use)
    fail("cannot listen on {}: another program does already; stop it or choose another port", place);
  if (error) fail("cannot listen on {}: {}", place, error.message());
}

}  // namespace

void check_address(const std::string& host, int port) {
  asio::io_context context;
  tcp::acceptor acceptor(context);
  listen_on(context, acceptor, host, port);
}

void HttpServer::Impl::listen() {
  listen_on(context, acceptor, options.host, static_cast<int>(options.port));
  const auto bound = acceptor.local_endpoint();
  address = bound.address().is_v6() ? fmt::format("[{}]", bound.address().to_string()) : bound.address().to_string();
  rlimit files{};  // every connection is a file
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
}

void HttpServer::Impl::accept() {
  acceptor.async_accept([this](Failure error, tcp::socket socket) {
    if (!acceptor.is_open()) return;
    if (error == asio::error::operation_aborted) return;
    if (error) {  // no descriptors left, for example: those who wait get their turn when others have gone
      accept_timer.expires_after(std::chrono::milliseconds(100));
      accept_timer.async_wait([this](Failure stopped) {
        if (!stopped) accept();
      });
      return;
    }
    take(std::move(socket));
    accept();
  });
}

void HttpServer::Impl::take(tcp::socket socket) {
  ++counts.accepted;
  Failure ignored;
  if (counts.connections >= options.max_connections) {
    ++counts.refused;
    const std::string head = head_text({503, 1, false, false, 0, "", "retry-after: 1\r\n"});
    [[maybe_unused]] const ssize_t sent =
        ::send(socket.native_handle(), head.data(), head.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return;
  }
  const bool v6 = socket.local_endpoint(ignored).address().is_v6();
  const auto connection = make_connection(*this, socket.release(ignored), v6);
  ++counts.connections;
  connections.insert(connection);
  connection->start();
}

void HttpServer::Impl::sweep() {
  sweep_timer.expires_after(kSweepTime);
  sweep_timer.async_wait([this](Failure stopped) {
    if (stopped) return;
    const auto now = Clock::now();
    const std::vector<std::shared_ptr<HttpConnection>> all(connections.begin(), connections.end());
    for (const auto& connection : all) connection->check_time(now);
    sweep();
  });
}

void HttpServer::Impl::wait_for_signal(std::function<void(int)> call) {
  signals.async_wait([this, call = std::move(call)](Failure stopped, int) {
    if (stopped) return;
    guarded([&] { call(++signal_count); });
    wait_for_signal(call);
  });
}

HttpServer::HttpServer(const HttpOptions& options, HttpHandler handler)
    : impl_(std::make_shared<Impl>(options, std::move(handler))) {
  impl_->listen();
  impl_->accept();
  impl_->sweep();
}

HttpServer::~HttpServer() {
  while (!impl_->connections.empty()) {
    const auto connection = *impl_->connections.begin();
    connection->close();
  }
}

int HttpServer::port() const {
  return impl_->acceptor.is_open() ? impl_->acceptor.local_endpoint().port() : 0;
}

std::string HttpServer::url() const {
  return fmt::format("http://{}:{}", impl_->address, port());
}

void HttpServer::run() {
  const auto work = asio::make_work_guard(impl_->context);
  impl_->context.run();
  Failure ignored;
  impl_->signals.clear(ignored);  // from now on a signal ends the process: nobody would hear it here
}

void HttpServer::post(std::function<void()> task) {
  asio::post(impl_->context, [impl = impl_.get(), task = std::move(task)] { impl->guarded(task); });
}

void HttpServer::after(std::chrono::milliseconds delay, std::function<void()> task) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->context, delay);
  timer->async_wait([impl = impl_.get(), timer, task = std::move(task)](Failure stopped) {
    if (!stopped) impl->guarded(task);
  });
}

void HttpServer::on_signal(std::function<void(int)> call) {
  for (const int signal : {SIGINT, SIGTERM}) impl_->signals.add(signal);
  impl_->wait_for_signal(std::move(call));
}

void HttpServer::close_when_answered() {
  Failure ignored;
  impl_->draining = true;
  impl_->acceptor.close(ignored);
  const std::vector<std::shared_ptr<HttpConnection>> all(impl_->connections.begin(), impl_->connections.end());
  for (const auto& connection : all) connection->drain();
}

void HttpServer::stop() {
  impl_->context.stop();
}

HttpServer::Counts HttpServer::counts() const {
  return impl_->counts;
}

}  // namespace fathom::serve
