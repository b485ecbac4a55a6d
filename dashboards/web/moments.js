// The moments of all steps, fetched in chunks; the last few chunks are cached.

import { get } from "./api.js";

const STEPS_PER_CHUNK = 100;
const KEPT = 40;
const FRESH_MS = 10_000; // cache time of a chunk that may still change

export class Moments {
  #chunks = new Map(); // number -> { asked, answer }

  // Returns a step's moment with its devices; null if nobody reported the step.
  async at(step, newest) {
    const number = Math.floor((step - 1) / STEPS_PER_CHUNK);
    const growing = (number + 1) * STEPS_PER_CHUNK > newest - STEPS_PER_CHUNK;
    const found = await this.#find(number, step, growing ? FRESH_MS : Infinity);
    return found ?? (growing ? this.#find(number, step, 0) : null); // the step may be new
  }

  forget() {
    this.#chunks.clear();
  }

  async #find(number, step, age) {
    const chunk = await this.#chunk(number, age);
    const moment = chunk.moments.find((each) => each.step === step);
    return moment ? { ...moment, devices: chunk.devices } : null;
  }

  #chunk(number, age) {
    const kept = this.#chunks.get(number);
    if (kept && performance.now() - kept.asked < age) return kept.answer;
    const answer = get(`moments/${number}`);
    answer.catch(() => this.#chunks.delete(number));
    this.#chunks.delete(number);
    this.#chunks.set(number, { asked: performance.now(), answer });
    if (this.#chunks.size > KEPT) this.#chunks.delete(this.#chunks.keys().next().value);
    return answer;
  }
}

// Lists the members at a moment, the largest contribution first:
// [{ member, samples, devices: [{ hardware, samples }] }].
export function people(moment) {
  const samples = new Map(moment.shares);
  const present = new Set([...moment.online, ...samples.keys()]);
  const found = new Map();
  for (const index of present) {
    const { member, hardware } = moment.devices[index];
    const person = found.get(member) ?? { member, samples: 0, devices: [] };
    person.devices.push({ hardware, samples: samples.get(index) ?? 0 });
    person.samples += samples.get(index) ?? 0;
    found.set(member, person);
  }
  return [...found.values()].sort((one, other) => other.samples - one.samples || (one.member < other.member ? -1 : 1));
}

// Returns the members' names for indices in the list of devices, without duplicates.
export function names(moment, indexes) {
  return [...new Set(indexes.map((index) => moment.devices[index].member))];
}
