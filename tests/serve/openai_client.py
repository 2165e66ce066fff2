"""The openai package against a running server: usage: openai_client.py URL KEY."""
import concurrent.futures
import json
import sys

import openai

url, key = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=60)
MESSAGES = [{"role": "user", "content": "Tell me a story"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather of a city",
          "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]
failures = 0


def check(name, condition, detail=""):
    global failures
    print("ok     " if condition else "FAILED ", name, "" if condition else detail)
    failures += not condition


def chat(**more):
    return client.chat.completions.create(**{"model": "fairy", "messages": MESSAGES, "max_tokens": 16, **more})


def refused(kind, call):
    try:
        call()
    except kind as e:
        return e
    except Exception as e:  # noqa: BLE001: any other kind is the failure
        check(f"expected {kind.__name__}", False, repr(e))
    else:
        check(f"expected {kind.__name__}", False, "no error")


model = client.models.list().data[0]
check("models", model.id == "fairy" and model.owned_by == "fathom")
check("model by name", client.models.retrieve("fairy").id == "fairy")

whole = chat(temperature=0)
check("whole answer", whole.choices[0].message.content.startswith("Once upon"), whole)
check("usage", whole.usage.completion_tokens == 16 and whole.usage.prompt_tokens_details.cached_tokens >= 0)
chunks = list(chat(temperature=0, stream=True, stream_options={"include_usage": True}))
text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
check("stream equals whole", text == whole.choices[0].message.content, text)
check("usage in the last chunk", chunks[-1].usage.completion_tokens == 16 and not chunks[-1].choices)
check("one finish reason", [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["length"])

thinking = chat(extra_body={"thinking": {"type": "enabled"}}, max_tokens=30)
check("thinking", thinking.choices[0].message.model_extra["reasoning_content"] != "")
check("seed", chat(seed=3).choices[0].message.content == chat(seed=3).choices[0].message.content)
check("n", len({c.message.content for c in chat(n=3, temperature=1.5).choices}) > 1)
logprobs = chat(logprobs=True, top_logprobs=3, max_tokens=4).choices[0].logprobs.content
check("logprobs", len(logprobs) == 4 and all(len(entry.top_logprobs) == 3 for entry in logprobs))
check("stop", "king" not in chat(stop=["king"], max_tokens=60, temperature=0).choices[0].message.content)
check("tools", chat(tools=TOOLS).choices[0].finish_reason in ("length", "stop", "tool_calls"))
history = MESSAGES + [
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"}]
check("tool history", chat(messages=history, tools=TOOLS).usage.prompt_tokens > 100)

completion = client.completions.create(model="fairy", prompt=["Once", "The"], max_tokens=5, logprobs=2, echo=True)
check("completions", len(completion.choices) == 2 and completion.choices[0].text.startswith("Once"))
pieces = "".join(c.choices[0].text for c in client.completions.create(
    model="fairy", prompt="Once", max_tokens=5, temperature=0, stream=True) if c.choices)
check("streamed completion", pieces == client.completions.create(
    model="fairy", prompt="Once", max_tokens=5, temperature=0).choices[0].text)

e = refused(openai.BadRequestError, lambda: chat(temperature=-1))
check("400 names the field", e is not None and e.param == "temperature", e)
e = refused(openai.BadRequestError, lambda: chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "no-such"}}))
check("tool_choice of a missing tool", e is not None and e.param == "tool_choice", e)
refused(openai.NotFoundError, lambda: chat(model="gpt-4"))
refused(openai.AuthenticationError, lambda: openai.OpenAI(base_url=url + "/v1", api_key="wrong", max_retries=0).models.list())
response = client.chat.completions.with_raw_response.create(
    model="fairy", messages=MESSAGES, max_tokens=1, extra_body={"frobnicate": 1}, extra_headers={"x-request-id": "mine"})
check("warning header", "frobnicate" in response.headers["x-fathom-warning"])
check("request id", response.headers["x-request-id"] == "mine")

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "old": {"type": "boolean"}},
          "required": ["name", "old"], "additionalProperties": False}
structured = chat(max_tokens=200, response_format={"type": "json_schema", "json_schema": {
    "name": "person", "schema": SCHEMA, "strict": True}})
value = json.loads(structured.choices[0].message.content)
check("structured output", set(value) == {"name", "old"} and isinstance(value["old"], bool), structured)
for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
    call = chat(max_tokens=300, tools=TOOLS, tool_choice=choice, temperature=0).choices[0]
    check("forced call", call.finish_reason == "tool_calls" and call.message.tool_calls[0].function.name == "weather"
          and isinstance(json.loads(call.message.tool_calls[0].function.arguments), dict), call)

stream = chat(stream=True, max_tokens=2000, extra_body={"ignore_eos": True})
next(iter(stream))
stream.close()  # leaves in the middle
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    texts = list(pool.map(lambda i: chat(seed=i % 4, max_tokens=24).choices[0].message.content, range(32)))
check("the same seed gives the same text among others", all(texts[i] == texts[i % 4] for i in range(32)))
retrying = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=5)
check("retries", retrying.chat.completions.create(model="fairy", messages=MESSAGES, max_tokens=2).usage.completion_tokens == 2)
sys.exit(failures > 0)
