"""The official `openai` Python package against a running server (GALVANI_URL, any model; a chat model for the answer test)."""
import json
import os
import unittest

import openai

URL = os.environ["GALVANI_URL"]
REAL = os.environ.get("GALVANI_REAL_MODEL") == "1"
CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("GALVANI_API_KEY", "none"), max_retries=0, timeout=120)
MODEL = CLIENT.models.list().data[0].id
ASK = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]


def chat(**more):
    return CLIENT.chat.completions.create(**{"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 24, **more})


class Chat(unittest.TestCase):
    def test_answer_makes_sense(self):
        answer = chat().choices[0]
        self.assertEqual(answer.message.role, "assistant")
        if REAL:
            self.assertIn("Paris", answer.message.content)

    def test_usage_adds_up(self):
        usage = chat(max_tokens=5).usage
        self.assertGreater(usage.prompt_tokens, 0)
        self.assertLessEqual(usage.completion_tokens, 5)
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)

    def test_stream_equals_whole(self):
        whole = chat().choices[0]
        text, reasons, usages = "", [], []
        for event in chat(stream=True, stream_options={"include_usage": True}):
            if event.usage:
                usages.append(event.usage)
            for choice in event.choices:
                text += choice.delta.content or ""
                if choice.finish_reason:
                    reasons.append(choice.finish_reason)
        self.assertEqual(text, whole.message.content)
        self.assertEqual(reasons, [whole.finish_reason])
        self.assertEqual(len(usages), 1)

    def test_stream_without_usage_has_no_empty_event(self):
        for event in chat(stream=True, max_tokens=4):
            self.assertTrue(event.choices)
            self.assertIsNone(event.usage)

    def test_logprobs(self):
        result = chat(max_tokens=4, logprobs=True, top_logprobs=3).choices[0]
        tokens = result.logprobs.content
        self.assertGreaterEqual(len(tokens), 1)
        for token in tokens:
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(len(token.top_logprobs), 3)
            best = [t.logprob for t in token.top_logprobs]
            self.assertEqual(best, sorted(best, reverse=True))
            self.assertAlmostEqual(token.logprob, best[0], places=4)
            self.assertEqual(bytes(token.bytes).decode("utf-8", "replace"), token.token)

    def test_n(self):
        choices = chat(n=3, temperature=1.0, seed=7, max_tokens=8).choices
        self.assertEqual([c.index for c in choices], [0, 1, 2])
        again = chat(n=3, temperature=1.0, seed=7, max_tokens=8).choices
        self.assertEqual([c.message.content for c in choices], [c.message.content for c in again])

    def test_stop(self):
        whole = chat().choices[0].message.content
        stop = whole[len(whole) // 2:][:3]
        cut = chat(stop=[stop]).choices[0]
        self.assertEqual(cut.finish_reason, "stop")
        self.assertEqual(cut.message.content, whole[:whole.index(stop)])
        streamed = "".join(c.delta.content or "" for e in chat(stop=[stop], stream=True) for c in e.choices)
        self.assertEqual(streamed, cut.message.content)

    def test_json_schema(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        result = chat(response_format=form, max_tokens=80).choices[0]
        self.assertEqual(list(json.loads(result.message.content)), ["city"])

    def test_tool_call(self):
        tool = {"type": "function", "function": {"name": "look_up", "description": "Looks a word up", "parameters": {
            "type": "object", "properties": {"word": {"type": "string", "enum": ["cat", "dog"]}}, "required": ["word"], "additionalProperties": False}}}
        more = {"tools": [tool], "tool_choice": "required", "max_tokens": 120}
        if os.environ.get("GALVANI_TOOLS") != "1":  # a template that knows no tools: refused, never left out in silence
            with self.assertRaises(openai.BadRequestError) as caught:
                chat(**more)
            self.assertEqual(caught.exception.param, "tools")
            return
        result = chat(**more).choices[0]
        self.assertEqual(result.finish_reason, "tool_calls")
        call = result.message.tool_calls[0]
        self.assertEqual(call.function.name, "look_up")
        self.assertIn(json.loads(call.function.arguments)["word"], ["cat", "dog"])


class Completions(unittest.TestCase):
    def test_text(self):
        result = CLIENT.completions.create(model=MODEL, prompt="1, 2, 3, 4,", max_tokens=6, temperature=0, logprobs=2)
        choice = result.choices[0]
        self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        self.assertEqual(len(choice.logprobs.tokens), len(choice.logprobs.token_logprobs))
        streamed = "".join(e.choices[0].text for e in CLIENT.completions.create(
            model=MODEL, prompt="1, 2, 3, 4,", max_tokens=6, temperature=0, stream=True))
        self.assertEqual(streamed, choice.text)

    def test_many_prompts(self):
        result = CLIENT.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=3, temperature=0)
        self.assertEqual([c.index for c in result.choices], [0, 1])


class Errors(unittest.TestCase):
    def refused(self, kind, **more):
        with self.assertRaises(kind) as caught:
            chat(**more)
        return caught.exception

    def test_bad_values(self):
        for more, param in (
            ({"temperature": 3}, "temperature"), ({"top_p": 0}, "top_p"), ({"n": 0}, "n"), ({"messages": []}, "messages"),
            ({"logit_bias": {"99999999": 5}}, "logit_bias"), ({"max_tokens": -1}, "max_tokens"),
            ({"stream_options": {"include_usage": True}}, "stream_options"),
        ):
            with self.subTest(param=param):
                error = self.refused(openai.BadRequestError, **more)
                self.assertEqual(error.param, param)
                self.assertTrue(error.message)

    def test_unknown_model(self):
        self.refused(openai.NotFoundError, model="no-such-model")

    def test_too_long(self):
        error = self.refused(openai.BadRequestError, messages=[{"role": "user", "content": "word " * 60000}], stream=True)
        self.assertEqual(error.code, "context_length_exceeded")

    def test_next_request_works(self):
        self.refused(openai.BadRequestError, temperature=-1)
        self.assertEqual(len(chat(max_tokens=2).choices), 1)


if __name__ == "__main__":
    unittest.main()
