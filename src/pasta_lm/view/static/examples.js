// Questions to click: real ones of different kinds, some with parts that need nothing of each other.

export const EXAMPLES = [
  "Write short descriptions of three dishes: soup, salad and cake.",
  "What are four good habits for better sleep, and why does each help?",
  "Compare walking, cycling and taking the bus to work.",
  "Describe spring, summer, autumn and winter.",
  "How do I make a simple vegetable soup?",
  "Plan a day in a city for a family with two small children.",
  "Why is the sky blue, and why are sunsets red?",
  "Write a short letter to thank a neighbour who watered my plants.",
];

// Documents and the fields to be read from each: any model writes them at the same time.
export const DOCUMENTS = [
  {
    label: "A booking, ten fields",
    text: `Booking 1845 at Hotel Aurora
Guest: Rui Costa
City: Lisbon
Room: double
Arrival: 14 May
Nights: 3
Adults: 2
Price: 145 euros
Breakfast: included
Email: rui.costa@example.com

Give the data as JSON.`,
    schema: `{"type": "object", "properties": {
  "number": {"type": "integer"},
  "hotel": {"type": "string"},
  "guest": {"type": "string"},
  "city": {"type": "string"},
  "room": {"type": "string"},
  "arrival": {"type": "string"},
  "nights": {"type": "integer"},
  "adults": {"type": "integer"},
  "price": {"type": "integer"},
  "email": {"type": "string"}
}}`,
  },
  {
    label: "A letter, eight fields",
    text: `Read the fields from this letter.

Dear Ms Novak,

thank you for your booking. We keep a double room for you at Hotel Aurora in Lisbon from 3 May, for four nights, at 96 euros a night. Breakfast is included. The room is paid; your number is HX-2207.

Kind regards, Rui Costa`,
    schema: `{"type": "object", "properties": {
  "guest": {"type": "string"},
  "hotel": {"type": "string"},
  "city": {"type": "string"},
  "room": {"enum": ["single", "double", "suite"]},
  "nights": {"type": "integer"},
  "price_in_euros": {"type": "integer"},
  "paid": {"type": "boolean"},
  "number": {"type": "string"}
}}`,
  },
  {
    label: "An invoice, ten fields",
    text: `Give the fields of this invoice as JSON.

Invoice 2026-0417, 17 April 2026
From: Brandt Office Supply, Hauptstrasse 12, Hamburg
To: Lumen Studio

3 desk lamps at 48.00 EUR: 144.00
Delivery: 9.50
VAT 19 %: 29.17
Total: 182.67 EUR, due within 30 days`,
    schema: `{"type": "object", "properties": {
  "number": {"type": "string"},
  "date": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
  "seller": {"type": "string"},
  "city": {"type": "string"},
  "buyer": {"type": "string"},
  "item": {"type": "string"},
  "quantity": {"type": "integer"},
  "unit_price": {"type": "number"},
  "total": {"type": "number"},
  "currency": {"enum": ["EUR", "USD", "GBP"]}
}}`,
  },
];
