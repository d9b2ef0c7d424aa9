// The dialogs of a session. Each method returns the properties of an `Ask` dialog. A dialog acts on the branch that
// was current when it was opened.
import { go, ofSession } from "./addresses.js";
import { plural } from "./figures.js";

const FORMS = [["html", "a page"], ["md", "Markdown"], ["text", "plain text"], ["jsonl", "a session file"], ["json", "JSON"]];

export class Questions {
  /** `runs()` says whether a model may be asked; `tell` says what was done, `edit` takes a text to be said anew, `ask` shows a dialog. */
  constructor(session, { runs, tell, edit, ask }) {
    Object.assign(this, { session, runs, tell, edit, ask });
  }

  /** A field for a summary, which may be left to the model where one may be asked. */
  summary(label) {
    const left = this.runs() ? { help: "Leave empty to let the model write it." } : { required: true };
    return { name: "summary", label, kind: "text", ...left };
  }

  navigate(entry) {
    const { session } = this, branch = session.current;
    const options = [["no", "No summary"], ["model", "Summary by the model"], ["own", "My own summary"]];
    return {
      title: "Go here",
      note: `Moves ${branch} to this entry. Later entries stay in the tree.`,
      action: "Go",
      fields: [
        {
          name: "how",
          label: "Summarize the branch you're leaving?",
          kind: "choice",
          value: "no",
          options: options.filter(([how]) => how !== "model" || this.runs()),
        },
        { name: "text", label: this.runs() ? "Instructions, or your summary" : "The summary", kind: "text" },
      ],
      submit: async ({ how, text }) => {
        const wanted = { no: {}, model: { summarize: true, instructions: text }, own: text ? { summary: text } : {} };
        const answer = await session.navigate(entry, { branch, ...wanted[how] });
        if (answer.cancelled) throw new Error("a hook cancelled the move");
        this.tell(branch === session.current ? "Moved. Press u to undo." : `Moved ${branch}`);
        return answer;
      },
      after: ({ text }) => text && branch === session.current && this.edit(text),
    };
  }

  branch(at) {
    return {
      title: "New branch",
      action: "Create",
      fields: [
        { name: "name", label: "Name", required: true },
        { name: "description", label: "Description" },
        { name: "switch", label: "Switch to it", kind: "check", value: true },
      ],
      submit: (values) => this.session.createBranch({ ...values, ...(at ? { at } : {}), switch: values.switch === "yes" }),
    };
  }

  label(entry) {
    const was = this.session.labelOf(entry) ?? "";
    return {
      title: "Label",
      note: "Leave the field empty to remove the label.",
      action: "Set",
      fields: [{ name: "label", label: "Label", value: was }],
      submit: async ({ label = "" }) => label === was || this.session.label(entry, label || null),
    };
  }

  fork(entry) {
    return {
      title: "Fork",
      note: "Copies the path to this entry into a new session.",
      action: "Fork",
      fields: [
        { name: "name", label: "Name of the new session" },
        { name: "tree", label: "Copy the whole tree", kind: "check" },
      ],
      submit: async ({ name, tree }) => {
        const part = tree === "yes" ? { tree: true } : entry ? { at: entry } : {};
        const made = await this.session.fork({ ...part, ...(name ? { name } : {}) });
        this.tell("Forked");
        return made;
      },
      after: ({ id }) => go(ofSession(id)),
    };
  }

  /** Nothing where there is no other branch. */
  merge(from) {
    const { session } = this, into = session.current;
    const others = session.branches.filter(({ name, archived }) => name !== into && !archived);
    if (!others.length) return null;
    return {
      title: "Merge",
      note: `Appends a summary of a branch to ${into}. Both branches stay as they are.`,
      action: "Merge",
      fields: [
        {
          name: "from",
          label: "Branch",
          kind: "choice",
          value: from ?? session.looking ?? others[0].name,
          options: others.map(({ name }) => [name, name]),
        },
        this.summary("Summary"),
      ],
      submit: async (values) => {
        const answer = await session.merge({ ...values, into });
        if (answer.cancelled) throw new Error("a hook cancelled the merge");
        this.tell(`Merged into ${into}`);
      },
    };
  }

  promote(branch) {
    const { session } = this, into = session.current;
    return {
      title: `Promote ${branch}`,
      note:
        `${into} continues from the end of ${branch}. ` +
        "The other branches are summarized there and archived, not deleted.",
      action: "Promote",
      fields: [this.summary("Summary of the others")],
      submit: async (values) => {
        const answer = await session.promote({ branch, into, ...values });
        if (answer.cancelled) throw new Error("a hook cancelled the promotion");
        this.tell(`Promoted; ${plural(answer.archived.length, "branch", "branches")} archived`);
      },
      after: () => go(ofSession(session.id)),
    };
  }

  rename(branch) {
    const { session } = this;
    return {
      title: branch ? `Rename ${branch}` : "Rename the session",
      action: "Rename",
      fields: [{ name: "name", label: "Name", value: branch ?? session.info.name ?? "", required: true }],
      submit: ({ name }) => (branch ? session.changeBranch(branch, { name }) : session.rename(name)),
    };
  }

  download() {
    const { session } = this;
    return {
      title: "Export",
      action: "Download",
      fields: [
        { name: "format", label: "As", kind: "choice", value: "html", options: FORMS },
        { name: "redact", label: "Redact secrets", kind: "check" },
      ],
      submit: ({ format, redact }, tell) => {
        const file = `${session.info.name || session.id}.${format === "text" ? "txt" : format}`;
        return session.api.exportSession(session.base, { format, redact: redact === "yes" }, file, tell);
      },
      after: (report) => report && this.ask(this.redacted(report)),
    };
  }

  /** What an export left out, by kind. */
  redacted({ counts, linesLeftOut }) {
    const found = Object.entries(counts);
    const unread = linesLeftOut ? ` ${plural(linesLeftOut, "unreadable line")} left out.` : "";
    return {
      title: "Exported with secrets redacted",
      note: (found.length ? "Look through the file before you share it: other secrets may remain." : "No secrets were found.") + unread,
      list: found.map(([kind, many]) => `${many} × ${kind}`),
      action: "Close",
      submit: async () => {},
    };
  }
}
