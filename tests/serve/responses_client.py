"""The responses API of the openai package against a running server: usage: responses_client.py URL KEY."""
import json
import sys

import openai

url, key = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=60)
TOOL = {"type": "function", "name": "weather", "description": "Weather of a city", "strict": None, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}, "required": ["city"]}}
failures = 0


def check(name, condition, detail=""):
    global failures
    print("ok     " if condition else "FAILED ", name, "" if condition else detail)
    failures += not condition


def settings(**more):
    return {"model": "fairy", "input": "Tell me a story", "max_output_tokens": 16, **more}


whole = client.responses.create(**settings(temperature=0))
check("whole answer", whole.output_text.startswith("Once upon") and whole.status == "incomplete", whole)
check("usage", whole.usage.output_tokens == 16 and whole.usage.total_tokens == 16 + whole.usage.input_tokens)
with client.responses.stream(**settings(temperature=0)) as stream:
    events = list(stream)
text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
check("stream equals whole", text == whole.output_text, text)
check("order", [events[0].type, events[1].type, events[-1].type] == [
    "response.created", "response.in_progress", "response.incomplete"], [e.type for e in events])
check("numbers", [e.sequence_number for e in events] == list(range(len(events))))

with client.responses.stream(**settings(
        reasoning={"effort": "low"}, max_output_tokens=40, extra_body={"thinking_budget": 6})) as stream:
    final = [e for e in stream][-1].response
check("reasoning", final.output[0].type == "reasoning" and final.output[0].content[0].text
      and final.output[1].type == "message", final)
again = client.responses.create(**settings(input=[{"role": "user", "content": "Hi"}, *final.output,
                                                  {"role": "user", "content": "Go on"}]))
check("output items go back", again.usage.input_tokens > 10)

for choice in ("required", {"type": "function", "name": "weather"}):
    with client.responses.stream(**settings(
            tools=[TOOL], tool_choice=choice, max_output_tokens=300, parallel_tool_calls=False)) as stream:
        done = [e for e in stream if e.type == "response.function_call_arguments.done"]
        call = stream.get_final_response()
    item = call.output[-1]
    check("forced call", call.status == "completed" and item.name == "weather"
          and json.loads(item.arguments)["city"] in ("Paris", "Rome") and done[0].arguments == item.arguments, call)
    back = client.responses.create(**settings(tools=[TOOL], input=[
        {"role": "user", "content": "Weather?"}, *call.output,
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}]))
    check("its output goes back", back.usage.output_tokens > 0)

SCHEMA = {"type": "object", "properties": {"old": {"type": "boolean"}}, "required": ["old"], "additionalProperties": False}
structured = client.responses.create(**settings(max_output_tokens=200, text={
    "format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}))
check("structured output", isinstance(json.loads(structured.output_text)["old"], bool), structured)
try:
    client.responses.create(**settings(previous_response_id=whole.id))
    check("stored state is refused", False, "no error")
except openai.BadRequestError as e:
    check("stored state is refused", e.param == "previous_response_id" and "stores nothing" in str(e), e)
try:
    client.responses.retrieve(whole.id)
    check("nothing is stored", False, "no error")
except openai.NotFoundError:
    check("nothing is stored", True)
sys.exit(failures > 0)
