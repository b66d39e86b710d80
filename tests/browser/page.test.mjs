// The chat page in headless Chromium against a running server (GALVANI_URL).
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const url = process.env.GALVANI_URL;
let browser;
before(async () => {
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
});
after(() => browser?.close());

/** A page in a fresh profile; every error of its script fails the test. */
async function open(t, options = {}) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const faults = [];
  page.on("pageerror", (error) => faults.push(error.message));
  page.on("console", (message) => message.type() === "error" && !/Failed to load resource|ERR_/.test(message.text()) && faults.push(message.text()));
  t.after(async () => { await context.close(); assert.deepEqual(faults, []); });
  await page.goto(url);
  await page.locator("#state[data-state=ready]").waitFor();
  return page;
}
const say = async (page, text) => { await page.locator("#prompt").fill(text); await page.keyboard.press("Enter"); };
const idle = (page) => page.locator("#send[data-state=idle]").waitFor({ timeout: 120_000 });
const setting = async (page, name, value) => {
  await page.keyboard.press("Control+,");
  await page.locator(`#settings [name=${name}]`).fill(String(value));
  await page.locator("#settings .primary").click();
};

test("shows the model and answers with a rate", async (t) => {
  const page = await open(t);
  const models = await (await fetch(`${url}/v1/models`)).json();
  assert.equal(await page.locator("#model").textContent(), models.data[0].id);
  await setting(page, "max_tokens", 24);
  await setting(page, "temperature", 0);
  await say(page, "What is the capital of France? Answer in one short sentence.");
  await idle(page);
  const answer = await page.locator(".turn.assistant .body").innerText();
  assert.ok(answer.length > 0);
  if (process.env.GALVANI_REAL_MODEL === "1") assert.match(answer, /Paris/);
  assert.match(await page.locator(".turn.assistant .stats").innerText(), /\d+ tokens · [\d.]+ tok\/s/);
});

/** A server that sends one delta at a time, at the test's word, in the place of the model. */
async function slowAnswer(t, page) {
  let reached;
  const asked = new Promise((resolve) => (reached = resolve));
  const server = createServer((request, response) => {
    response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders();
    reached({
      send: (content) => response.write(`data: ${JSON.stringify({ choices: [{ index: 0, delta: { content }, finish_reason: null }] })}\n\n`),
      closed: new Promise((resolve) => response.on("close", resolve)),
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => { server.closeAllConnections(); server.close(); });
  await page.route("**/v1/chat/completions", (route) => route.continue({ url: `http://127.0.0.1:${server.address().port}/` }));
  return { asked };
}

test("streams: each piece is shown as it comes; Esc stops and keeps them", async (t) => {
  const page = await open(t);
  const { asked } = await slowAnswer(t, page);
  await say(page, "count");
  const answer = await asked;
  const shown = (text) => page.waitForFunction((text) => document.querySelector(".turn.assistant .body")?.textContent === text, text);
  answer.send("one");
  await shown("one");
  answer.send(" two");
  await shown("one two");
  assert.equal(await page.locator("#send").getAttribute("data-state"), "running");
  await page.keyboard.press("Escape");
  await page.locator("#send[data-state=idle]").waitFor({ timeout: 5000 });
  await answer.closed;
  assert.equal(await page.locator(".turn.assistant .body").textContent(), "one two");
  assert.match(await page.locator(".turn.assistant .stats").innerText(), /2 tokens .* stopped/);
});

test("a list stays a list while its next mark comes", async (t) => {
  const page = await open(t);
  const { asked } = await slowAnswer(t, page);
  await say(page, "list");
  const answer = await asked;
  let text = "";
  for (const [piece, items] of [["1.", []], [" red", ["red"]], ["\n", ["red"]], ["2", ["red", ""]], [".", ["red", ""]], [" blue", ["red", "blue"]], ["\n\nIn", ["red", "blue"]]]) {
    text += piece;
    answer.send(piece);
    await page.waitForFunction((text) => turns.at(-1).content === text, text);
    await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
    if (items) assert.deepEqual(await page.locator(".turn.assistant li").allTextContents(), items, JSON.stringify(text));
  }
  await page.keyboard.press("Escape");
  await idle(page);
});

test("Esc ends the work of the server", async (t) => {
  const page = await open(t);
  await setting(page, "max_tokens", 1500);
  await setting(page, "temperature", 0);
  await say(page, "Write a long story about the sea.");
  await page.waitForFunction(() => turns.at(-1)?.stats?.tokens >= 3);
  await page.keyboard.press("Escape");
  await page.locator("#send[data-state=idle]").waitFor({ timeout: 5000 });
  const turn = await page.evaluate(() => turns.at(-1));
  assert.equal(turn.error, undefined);
  assert.ok(turn.content.length > 0);
  const running = async () => Number(/^vllm:num_requests_running(?:\{[^}]*\})? (\S+)$/m.exec(await (await fetch(`${url}/metrics`)).text())[1]);
  const until = Date.now() + 5000;
  while (await running()) assert.ok(Date.now() < until, "the request still runs");
});

test("edit sends the changed message and drops what followed", async (t) => {
  const page = await open(t);
  await setting(page, "max_tokens", 6);
  await say(page, "first question");
  await idle(page);
  await say(page, "second question");
  await idle(page);
  assert.equal(await page.locator(".turn").count(), 4);
  await page.locator(".turn.user .edit-button").first().click();
  await page.locator("textarea.edit").fill("changed question");
  await page.keyboard.press("Enter");
  await idle(page);
  assert.equal(await page.locator(".turn").count(), 2);
  assert.equal(await page.locator(".turn.user .body").innerText(), "changed question");
});

test("retry asks the same again", async (t) => {
  const page = await open(t);
  await setting(page, "max_tokens", 6);
  const bodies = [];
  page.on("request", (r) => r.url().endsWith("/chat/completions") && bodies.push(JSON.parse(r.postData())));
  await say(page, "hello");
  await idle(page);
  await page.locator(".retry-button").click();
  await idle(page);
  assert.equal(bodies.length, 2);
  assert.deepEqual(bodies[0].messages, bodies[1].messages);
  assert.equal(await page.locator(".turn").count(), 2);
});

test("keyboard alone: arrow up edits, Ctrl+Shift+O starts anew, ? helps, / focuses", async (t) => {
  const page = await open(t);
  await setting(page, "max_tokens", 4);
  await say(page, "hello");
  await idle(page);
  await page.locator("#prompt").focus();
  await page.keyboard.press("ArrowUp");
  assert.equal(await page.locator("textarea.edit").inputValue(), "hello");
  await page.keyboard.press("Escape");
  assert.equal(await page.locator("textarea.edit").count(), 0);
  await page.locator("#scroller").focus();
  await page.keyboard.press("?");
  assert.ok(await page.locator("#keys").isVisible());
  await page.keyboard.press("Escape");
  await page.locator("#scroller").focus();
  await page.keyboard.press("/");
  assert.ok(await page.locator("#prompt").evaluate((e) => e === document.activeElement));
  await page.keyboard.press("Control+Shift+O");
  assert.equal(await page.locator(".turn").count(), 0);
});

const stream = (...deltas) => deltas.map((delta) => `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: null }] })}\n\n`).join("") +
  `data: ${JSON.stringify({ choices: [{ index: 0, delta: {}, finish_reason: "stop" }] })}\n\ndata: [DONE]\n\n`;
const script = (page, body, status = 200) => page.route("**/v1/chat/completions", (route) =>
  route.fulfill({ status, contentType: status === 200 ? "text/event-stream" : "application/json", body }));

test("thinking is folded and opens", async (t) => {
  const page = await open(t);
  await script(page, stream({ reasoning_content: "let me think" }, { content: "The answer" }));
  await say(page, "why?");
  await idle(page);
  const thinking = page.locator("details.thinking");
  assert.equal(await thinking.getAttribute("open"), null);
  assert.ok(!(await page.getByText("let me think").isVisible()));
  await thinking.locator("summary").click();
  assert.ok(await page.getByText("let me think").isVisible());
  assert.equal(await page.locator(".turn.assistant .body").innerText(), "The answer");
});

test("model text is never run as HTML; code and lists are shown as such", async (t) => {
  const page = await open(t);
  const text = "<img src=x onerror=window.hit=1> **bold** `x<y`\n\n- one\n- two\n\n```html\n<script>window.hit=2</script>\n```\n";
  await script(page, stream({ content: text }));
  await say(page, "attack");
  await idle(page);
  assert.equal(await page.evaluate(() => window.hit), undefined);
  assert.equal(await page.locator(".turn.assistant img").count(), 0);
  assert.equal(await page.locator(".turn.assistant strong").innerText(), "bold");
  assert.equal(await page.locator(".turn.assistant li").count(), 2);
  assert.equal(await page.locator(".turn.assistant pre code").innerText(), "<script>window.hit=2</script>");
});

test("an error is shown with a way on", async (t) => {
  const page = await open(t);
  await script(page, JSON.stringify({ error: { message: "the queue is full", type: "rate_limit_error", param: null, code: null } }), 429);
  await say(page, "hello");
  await idle(page);
  assert.equal(await page.locator(".error").innerText(), "the queue is full");
  assert.equal(await page.locator(".retry-button").count(), 1);
});

test("settings reach the request and outlive a reload", async (t) => {
  const page = await open(t);
  await setting(page, "system", "You are terse.");
  await setting(page, "temperature", 0.25);
  await page.reload();
  await page.locator("#state[data-state=ready]").waitFor();
  const sent = page.waitForRequest("**/v1/chat/completions");
  await script(page, stream({ content: "ok" }));
  await say(page, "hi");
  const body = JSON.parse((await sent).postData());
  assert.equal(body.temperature, 0.25);
  assert.deepEqual(body.messages[0], { role: "system", content: "You are terse." });
});

for (const colorScheme of ["light", "dark"]) {
  test(`${colorScheme}: text stands out from the page`, async (t) => {
    const page = await open(t, { colorScheme });
    const [ink, paper] = await page.evaluate(() => {
      const style = getComputedStyle(document.body);
      return [style.color, style.backgroundColor].map((c) => c.match(/\d+/g).slice(0, 3).map(Number));
    });
    const light = (c) => c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
    const [a, b] = [light(ink), light(paper)].sort((x, y) => y - x);
    assert.ok((a + 0.05) / (b + 0.05) >= 7);
    assert.equal(light(paper) > 0.5, colorScheme === "light");
    if (process.env.GALVANI_SHOTS) await page.screenshot({ path: `${process.env.GALVANI_SHOTS}/${colorScheme}.png` });
  });
}

test("phone width: nothing hangs over, everything can be reached", async (t) => {
  const page = await open(t, { viewport: { width: 360, height: 640 }, hasTouch: true });
  await script(page, stream({ content: "wide ".repeat(80) + "\n\n```\n" + "x".repeat(400) + "\n```" }));
  await say(page, "long");
  await idle(page);
  const { scroll, client } = await page.evaluate(() => ({ scroll: document.documentElement.scrollWidth, client: document.documentElement.clientWidth }));
  assert.ok(scroll <= client, `${scroll} > ${client}`);
  for (const id of ["send", "new", "open-settings"]) {
    const box = await page.locator(`#${id}`).boundingBox();
    assert.ok(box.x >= 0 && box.x + box.width <= 360 && box.y + box.height <= 640, id);
  }
  if (process.env.GALVANI_SHOTS) await page.screenshot({ path: `${process.env.GALVANI_SHOTS}/phone.png` });
});
