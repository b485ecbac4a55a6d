// Finding somebody among the participants: by a part of the name, or by a device's number. Pure: no element, no request.

const ACCENTS = /[\u0300-\u036f]/g; // on Latin, Greek and Cyrillic letters; the signs of other scripts stay
const folded = (text) => text.normalize("NFKD").replace(ACCENTS, "").toLowerCase().trim();

// Those whose name has this text in it, or one of whose devices has this number ("12" or "#12"); all, if it is empty.
export function found(participants, text) {
  const wanted = folded(text);
  const device = /^#?(\d+)$/.exec(wanted);
  const has = (each) => device !== null && each.device_numbers.includes(Number(device[1]));
  return participants.filter((each) => has(each) || folded(each.member).includes(wanted));
}

export const isOnline = (each) => each.active.length > 0;

// Those who are here now first, else in the order in which they come.
export const onlineFirst = (participants) => [...participants.filter(isOnline), ...participants.filter((each) => !isOnline(each))];
