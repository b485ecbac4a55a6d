// Search of members by part of a name or by device number. Pure functions without elements or requests.

const ACCENTS = /[\u0300-\u036f]/g; // combining marks of Latin, Greek and Cyrillic letters, not of other scripts
const folded = (text) => text.normalize("NFKD").replace(ACCENTS, "").toLowerCase().trim();

// Returns members with this text in the name, or a device number ("12", "#12"); all if it is empty.
export function found(participants, text) {
  const wanted = folded(text);
  const device = /^#?(\d+)$/.exec(wanted);
  const has = (each) => device !== null && each.device_numbers.includes(Number(device[1]));
  return participants.filter((each) => has(each) || folded(each.member).includes(wanted));
}

export const isOnline = (each) => each.active.length > 0;

// Moves online members to the front, and otherwise keeps the order.
export const onlineFirst = (participants) => [...participants.filter(isOnline), ...participants.filter((each) => !isOnline(each))];
