// The best checkpoint to download, and the code that loads it. Pure functions without elements or requests.

const FEW_SAMPLES = 100; // with fewer, a single sample changes the accuracy by more than 0.01

const newest = (validations) => validations.reduce((one, other) => (other.evaluated_at >= one.evaluated_at ? other : one), validations[0]);

// Returns the published checkpoint with the lowest loss on the newest held-out text; null if fewer
// than two can be compared.
export function best(checkpoints, validations) {
  const set = newest(validations)?.set_sha256;
  const losses = new Map(validations.filter((row) => row.set_sha256 === set && row.loss !== null).map((row) => [row.manifest_sha256, row.loss]));
  const compared = checkpoints.filter((each) => !each.withheld && losses.has(each.manifest_sha256));
  const loss = (each) => losses.get(each.manifest_sha256);
  return compared.length < 2 ? null : compared.reduce((one, other) => (loss(other) <= loss(one) ? other : one));
}

// Returns the number of samples of the newest held-out text if it is too small, else null.
export function fewSamples(validations) {
  const samples = newest(validations)?.samples ?? FEW_SAMPLES;
  return samples < FEW_SAMPLES ? samples : null;
}

// Returns Python code that downloads a checkpoint into the current folder and loads it.
export function snippet(address, folder, auto) {
  return `import tarfile, urllib.request
from transformers import ${auto}, AutoTokenizer

with urllib.request.urlopen("${address}") as tar:
    tarfile.open(fileobj=tar, mode="r|").extractall(filter="data")

tokenizer = AutoTokenizer.from_pretrained("./${folder}")
model = ${auto}.from_pretrained("./${folder}")
`;
}
