// What happened at each step, fetched in stretches of which the last few are kept.

import { get } from "./api.js";

const STEPS_PER_CHUNK = 100;
const KEPT = 40;
const FRESH_MS = 10_000; // a stretch that the run is still in is asked for again

export class Moments {
  #chunks = new Map(); // number -> { asked, answer }

  // The step with the devices that it speaks of; null if nobody reported it.
  async at(step, newest) {
    const number = Math.floor((step - 1) / STEPS_PER_CHUNK);
    const growing = (number + 1) * STEPS_PER_CHUNK > newest - STEPS_PER_CHUNK;
    const found = await this.#find(number, step, growing ? FRESH_MS : Infinity);
    return found ?? (growing ? this.#find(number, step, 0) : null); // it may have come since
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

// Members with their devices at a moment, who gave most first: [{ member, samples, devices: [{ hardware, samples }] }].
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

// The names behind places in the list of devices, each once.
export function names(moment, indexes) {
  return [...new Set(indexes.map((index) => moment.devices[index].member))];
}
