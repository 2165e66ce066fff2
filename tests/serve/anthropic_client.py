"""The anthropic package against a running server: usage: anthropic_client.py URL KEY."""
import json
import sys

import anthropic

url, key = sys.argv[1], sys.argv[2]
client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=60)
MESSAGES = [{"role": "user", "content": "Tell me a story"}]
TOOLS = [{"name": "weather", "description": "Weather of a city", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}, "required": ["city"]}}]
failures = 0


def check(name, condition, detail=""):
    global failures
    print("ok     " if condition else "FAILED ", name, "" if condition else detail)
    failures += not condition


def settings(**more):
    return {"model": "fairy", "messages": MESSAGES, "max_tokens": 16, **more}


def refused(kind, call):
    try:
        call()
    except kind as e:
        check(f"{kind.__name__} in Anthropic's form", e.body["type"] == "error" and e.body["error"]["message"], e.body)
        return e
    except Exception as e:  # noqa: BLE001: any other kind is the failure
        check(f"expected {kind.__name__}", False, repr(e))
    else:
        check(f"expected {kind.__name__}", False, "no error")


GREEDY = {"temperature": 0}
whole = client.messages.create(**settings(extra_body=GREEDY))
check("whole answer", whole.content[0].text.startswith("Once upon") and whole.stop_reason == "max_tokens", whole)
check("usage", whole.usage.output_tokens == 16 and whole.usage.input_tokens + whole.usage.cache_read_input_tokens > 0)
check("request id", whole._request_id.startswith("req-"), whole._request_id)

with client.messages.stream(**settings(extra_body=GREEDY)) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
check("stream equals whole", text == whole.content[0].text == final.content[0].text, text)
check("the final message", final.usage.output_tokens == 16 and final.stop_reason == "max_tokens", final)
events = [e.type for e in client.messages.create(**settings(stream=True, max_tokens=2))]
check("raw events", events[0] == "message_start" and events[-2:] == ["message_delta", "message_stop"], events)

thinking = {"type": "enabled", "budget_tokens": 1024}
with client.messages.stream(**settings(thinking={**thinking, "budget_tokens": 6}, max_tokens=40)) as stream:
    kinds = [e.type for e in stream]
    final = stream.get_final_message()
check("thinking", [b.type for b in final.content] == ["thinking", "text"] and final.content[0].thinking, final)
check("thinking comes first", kinds.index("thinking") < kinds.index("text"), kinds)
check("thinking goes back", client.messages.create(**settings(
    messages=MESSAGES + [{"role": "assistant", "content": final.content}, *MESSAGES])).usage.output_tokens > 0)
check("count_tokens", client.messages.count_tokens(model="fairy", messages=MESSAGES, system="Be kind").input_tokens > 5)
check("stop sequence", client.messages.create(**settings(
    stop_sequences=["time"], max_tokens=60, extra_body=GREEDY)).stop_sequence == "time")

for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
    with client.messages.stream(**settings(tools=TOOLS, tool_choice=choice, max_tokens=300, system="Be kind")) as stream:
        list(stream)
        call = stream.get_final_message()
    use = call.content[-1]
    check("forced call", call.stop_reason == "tool_use" and use.name == "weather" and use.input["city"] in ("Paris", "Rome"), call)
    back = client.messages.create(**settings(tools=TOOLS, messages=MESSAGES + [
        {"role": "assistant", "content": call.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]}]))
    check("its result goes back", back.role == "assistant" and back.usage.output_tokens > 0, back)
SCHEMA = {"type": "object", "properties": {"old": {"type": "boolean"}}, "required": ["old"], "additionalProperties": False}
structured = client.messages.create(**settings(max_tokens=200, extra_body={
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}))
check("structured output", isinstance(json.loads(structured.content[0].text)["old"], bool), structured)

e = refused(anthropic.BadRequestError, lambda: client.messages.create(**settings(max_tokens=0)))
check("400 names the field", e is not None and "max_tokens" in str(e), e)
refused(anthropic.NotFoundError, lambda: client.messages.create(**settings(model="claude")))
refused(anthropic.AuthenticationError, lambda: anthropic.Anthropic(
    base_url=url, api_key="wrong", max_retries=0).messages.create(**settings()))
bearer = anthropic.Anthropic(base_url=url, auth_token=key, max_retries=0)
check("bearer token", bearer.messages.create(**settings(max_tokens=1)).usage.output_tokens == 1)
models = list(client.models.list())
check("models", models[0].id == models[0].display_name == "fairy" and models[0].created_at.year >= 2024, models)
raw = client.messages.with_raw_response.create(**settings(max_tokens=1, extra_body={"frobnicate": 1}))
check("warning header", "frobnicate" in raw.headers["x-fathom-warning"])
stream = client.messages.create(**settings(stream=True, max_tokens=1500, extra_body={"ignore_eos": True}))
next(iter(stream))
stream.close()  # leaves in the middle
check("served after that", client.messages.create(**settings(max_tokens=1)).usage.output_tokens == 1)
sys.exit(failures > 0)
