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
