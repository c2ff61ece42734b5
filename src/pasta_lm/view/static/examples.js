// Questions to click: real ones of different kinds, some with parts that need nothing of each other.

export const EXAMPLES = [
  "What are four good habits for better sleep, and why does each help?",
  "Compare walking, cycling and taking the bus to work.",
  "What are the pros and cons of working from home?",
  "Describe spring, summer, autumn and winter.",
  "How do I make a simple vegetable soup?",
  "Plan a day in a city for a family with two small children.",
  "Why is the sky blue, and why are sunsets red?",
  "Write a short letter to thank a neighbour who watered my plants.",
];

const BOOKING = `Dear Ms Novak,

thank you for your booking. We keep a double room for you at Hotel Aurora in Lisbon from 3 May, for four nights, at 96 euros a night. Breakfast is included. The room is paid; your number is HX-2207.

Kind regards, Rui Costa`;
const text = { type: "string", maxLength: 40 };

// One document and the fields to be read from it: any model writes them at the same time.
export const FIELDS = {
  label: "One document, eight fields: any model fills them at the same time",
  prompt: `Read the fields from this letter.\n\n${BOOKING}`,
  schema: {
    type: "object",
    properties: {
      guest: text,
      hotel: text,
      city: text,
      room: { enum: ["single", "double", "suite"] },
      nights: { type: "integer", minimum: 1, maximum: 60 },
      price_in_euros: { type: "integer", minimum: 1, maximum: 2000 },
      paid: { type: "boolean" },
      number: text,
    },
  },
};
