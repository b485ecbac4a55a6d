// Loaded before the first paint: behind an invite link the page waits for the invitation, so that nothing moves when it
// comes (join.css). Whether the code is one, join.js knows.

document.documentElement.classList.toggle("is-invited", window.location.hash.includes("invite="));
