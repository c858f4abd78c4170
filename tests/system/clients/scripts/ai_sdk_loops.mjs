// Vercel's AI SDK over chat completions (three providers), responses and messages.

import { createRequire } from "node:module";

// The folder with node_modules is elsewhere.
const required = createRequire(`${process.env.NODE_PACKAGES}/`);
const { generateText, streamText, stepCountIs, tool, Output } = required("ai");
const { createOpenAICompatible } = required("@ai-sdk/openai-compatible");
const { createOpenAI } = required("@ai-sdk/openai");
const { createMistral } = required("@ai-sdk/mistral");
const { createAnthropic } = required("@ai-sdk/anthropic");
const { z } = required("zod");

const [url, model, , ...wanted] = process.argv.slice(2);
const QUESTION = "What shall I wear in Paris, Rome and Oslo?";
const NEXT = "And at night?";
const WEATHER = { Paris: "Rain, 9 °C", Rome: "Sun", Oslo: "Snow" };
const Advice = z.object({ city: z.string(), coat: z.boolean() });

const key = { baseURL: `${url}/v1`, apiKey: "unused" };
const openai = createOpenAI(key);
const models = {
  compatible: createOpenAICompatible({
    ...key,
    name: "penstock",
    supportsStructuredOutputs: true,
  })(model),
  chat: openai.chat(model),
  mistral: createMistral(key)(model),
  responses: openai.responses(model),
  messages: createAnthropic(key)(model),
};

// Of responses: it sends thoughts back only if they came encrypted.
const THINKING = {
  store: false,
  reasoningSummary: "auto",
  forceReasoning: true,
};

async function loop(feature) {
  const calls = [];
  let deltas = 0;
  const structured = feature.includes("structured");
  const form = structured ? " Answer with an object." : "";
  const common = {
    model: models[feature.split("_")[0]],
    system: `You are ${feature}.${form}`,
    maxRetries: 0,
    providerOptions: { openai: THINKING },
    stopWhen: stepCountIs(5),
    tools: {
      get_weather: tool({
        description: "The weather in a city.",
        inputSchema: z.object({ city: z.string() }),
        execute: async ({ city }) => {
          calls.push(city);
          return WEATHER[city];
        },
      }),
    },
  };
  const asked = {
    ...common,
    messages: [{ role: "user", content: QUESTION }],
    ...(structured ? { output: Output.object({ schema: Advice }) } : {}),
  };
  let result;
  if (feature.includes("streamed")) {
    result = streamText({ ...asked, onError: () => {} });
    for await (const part of result.fullStream) {
      if (part.type === "error") throw part.error;
      if (part.type === "text-delta") deltas += 1;
    }
  } else {
    result = await generateText(asked);
  }
  const steps = await result.steps;
  const thoughts = steps.map((step) => step.reasoningText ?? "");
  const told = { calls, thoughts, deltas, next: null };
  if (structured) return { ...told, said: await result.output };
  const { messages } = await result.response;
  const history = [...asked.messages, ...messages, { role: "user", content: NEXT }];
  const after = await generateText({ ...common, messages: history });
  return { ...told, said: await result.text, next: after.text };
}

const told = {};
for (const name of wanted) {
  try {
    told[name] = { got: await loop(name) };
  } catch (error) {
    told[name] = { error: `${error?.stack ?? error} ${error?.responseBody ?? ""}`.slice(-4000) };
  }
}
console.log(`\n${JSON.stringify(told)}`);
