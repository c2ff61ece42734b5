// Light or dark: as the system says, until somebody switches; kept for the other pages of the server.

const KEY = "theme";

// A page in a file, or a browser without storage, forgets the choice.
function storedTheme() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function setTheme(isDark) {
  const { classList } = document.documentElement;
  classList.toggle("dark", isDark);
  classList.toggle("light", !isDark);
}

function switchTheme() {
  const { classList } = document.documentElement;
  const wasDark = classList.contains("dark")
    || (!classList.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
  setTheme(!wasDark);
  try {
    sessionStorage.setItem(KEY, wasDark ? "light" : "dark");
  } catch {
    // nothing is kept
  }
}

// A switch for the colours of threads in the text.
export function offerColours(box) {
  const show = () => document.documentElement.classList.toggle("plain-text", !box.checked);
  box.addEventListener("change", show);
  show();
}

export function offerTheme(button) {
  const theme = storedTheme();
  if (theme) setTheme(theme === "dark");
  button.addEventListener("click", switchTheme);
}
