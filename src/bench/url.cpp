#include "bench/url.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>

#include "base/error.h"

namespace fathom::bench {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using Code = boost::system::error_code;

namespace {

constexpr auto await = asio::as_tuple(asio::use_awaitable);

asio::awaitable<void> exchange(const HttpCall& call, const http::request<http::string_body>& request,
                               const tcp::resolver::results_type& endpoints, asio::io_context& io, Code& result,
                               HttpAnswer& answer) {
  beast::tcp_stream stream(io);
  stream.expires_after(std::chrono::milliseconds(static_cast<int64_t>(call.timeout * 1e3)));
  auto [connect_error, endpoint] = co_await stream.async_connect(endpoints, await);
  if ((result = connect_error)) co_return;
  auto [write_error, written] = co_await http::async_write(stream, request, await);
  if ((result = write_error)) co_return;
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(uint64_t{64} << 20);
  auto [read_error, bytes] = co_await http::async_read(stream, buffer, parser, await);
  if ((result = read_error)) co_return;
  answer = {static_cast<int>(parser.get().result_int()), std::move(parser.get().body())};
}

}  // namespace

Address parse_url(const std::string& url) {
  std::string_view rest(url);
  if (rest.starts_with("https://"))
    fail("{}: https is not supported: measure the server itself, at its http address", printable(url, 300));
  if (!rest.starts_with("http://")) fail("{}: expected http://HOST:PORT", printable(url, 300));
  rest.remove_prefix(7);
  Address a;
  const size_t slash = rest.find('/');
  std::string_view authority = rest.substr(0, slash);
  if (slash != rest.npos) a.prefix = rest.substr(slash);
  while (a.prefix.ends_with('/')) a.prefix.pop_back();
  if (a.prefix.ends_with("/v1")) a.prefix.resize(a.prefix.size() - 3);
  if (a.prefix.find_first_of("?# \r\n") != std::string::npos)
    fail("{}: expected http://HOST:PORT", printable(url, 300));
  const size_t bracket = authority.rfind(']'), colon = authority.rfind(':');
  const bool has_port = colon != authority.npos && (bracket == authority.npos || colon > bracket);
  a.port = has_port ? std::string(authority.substr(colon + 1)) : "80";
  if (has_port) authority = authority.substr(0, colon);
  a.host = authority;
  if (a.host.starts_with('[') && a.host.ends_with(']')) a.host = a.host.substr(1, a.host.size() - 2);
  if (a.host.empty() || a.port.empty() || a.host.find_first_of(" \r\n@") != std::string::npos ||
      a.port.find_first_not_of("0123456789") != std::string::npos)
    fail("{}: expected http://HOST:PORT", printable(url, 300));
  return a;
}

HttpAnswer http_call(const HttpCall& call) {
  const Address address = parse_url(call.url);
  asio::io_context io(1);
  Code error;
  tcp::resolver resolver(io);
  const auto endpoints = resolver.resolve(address.host, address.port, error);
  if (error) fail("{}: cannot find the host: {}", printable(call.url, 300), error.message());
  http::request<http::string_body> request{call.method == "POST" ? http::verb::post : http::verb::get,
                                           address.prefix + call.path, 11};
  request.set(http::field::host, address.host + ":" + address.port);
  request.set(http::field::user_agent, "fathom");
  request.set(http::field::connection, "close");
  if (!call.api_key.empty()) request.set(http::field::authorization, "Bearer " + call.api_key);
  if (!call.body.empty()) request.set(http::field::content_type, "application/json");
  request.body() = call.body;
  request.prepare_payload();
  HttpAnswer answer;
  asio::co_spawn(io, exchange(call, request, endpoints, io, error, answer), asio::detached);
  io.run();
  if (error)
    fail("{}{}: {}", printable(call.url, 300), call.path,
         error == beast::error::timeout ? fmt::format("no answer within {:g} s", call.timeout) : error.message());
  return answer;
}

}  // namespace fathom::bench
