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
    schema: `number int, hotel, guest, city, room, arrival,
nights int, adults int, price int, email`,
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
  { // the fifteenth of examples/invoices.jsonl
    label: "An invoice, ten fields",
    text: `INV/2027/0417      Stone Bridge Timber      17 April 2027
for: Carpenter Nowak
oak boards     640.00
pine boards    210.00
screws          30.00
delivery        60.00
------------------------
EUR            940.00      due 1 May 2027`,
    schema: `{"type": "object", "properties": {
  "number": {"type": "string", "description": "the invoice's number, as it is written"},
  "supplier": {"type": "string", "description": "who sends the invoice"},
  "customer": {"type": "string", "description": "who receives the invoice"},
  "date": {"type": "string", "format": "date", "description": "the date of the invoice"},
  "total": {"type": "number", "description": "the sum that is to be paid, without the currency"},
  "currency": {"enum": ["EUR", "USD", "GBP", "CHF"]},
  "items": {"type": "integer", "description": "how many different things are charged"},
  "due": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}], "description": "the last day to pay; null if none is given"},
  "paid": {"type": "boolean", "description": "whether it has been paid already"},
  "kind": {"enum": ["goods", "service", "subscription"]}
}, "required": ["number", "supplier", "customer", "date", "total", "currency", "items", "due", "paid", "kind"], "additionalProperties": false}`,
  },
];
