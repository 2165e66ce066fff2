"""The benchmark's stub as a server on uvicorn and Starlette: every stream gets a token each 20 ms, as server-sent events.

usage: stub_uvicorn.py TOKENS     a file with one token a line; prints its port
"""
import asyncio
import json
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

tokens = open(sys.argv[1]).read().split("\n")[:-1]
tick = None


async def ticker():
    global tick
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        due += 0.02
        await asyncio.sleep(due - loop.time())
        old, tick = tick, loop.create_future()
        old.set_result(None)


async def chat(request):
    global tick
    await request.json()
    if tick is None:
        tick = asyncio.get_running_loop().create_future()
        request.app.state.ticker = asyncio.create_task(ticker())

    async def events():
        for token in tokens:
            await asyncio.shield(tick)
            delta = json.dumps({"content": token})
            yield ('data: {"id":"chatcmpl-0123456789abcdef01234567","object":"chat.completion.chunk","created":1764400000,'
                   '"model":"stub","choices":[{"index":0,"delta":' + delta.replace(": ", ":", 1) + ',"finish_reason":null}]}\n\n')
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(4096)
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, backlog=4096)).run(sockets=[listener])
